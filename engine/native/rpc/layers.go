package rpc

// A launcher that has a data directory keeps the layers of images, see engine.Layers:
//
//	client                                       launcher
//	  | -- MakeLayer      name ------------------> |
//	  | <- Reply                                     |
//	  | -- Create         spec that unpacks -------> |
//	  | <- Reply          as always                  |
//	  | -- Remove         box ---------------------> |
//	  | <- Reply                                     |
//	  | -- PublishLayer   name, id ----------------> |   or AbandonLayer
//	  | <- Reply                                     |
//	  | -- Layers         after -------------------> |
//	  | <- Reply          ids, more                  |
//	  | -- RemoveLayer    id ----------------------> |
//	  | <- Reply                                     |
//
// Each of them can be carried out twice. Unpublished layers end with the launcher; a client that
// publishes one afterwards gets engine.ErrNoLayer.
const (
	TypeMakeLayer    = 93
	TypePublishLayer = 94
	TypeAbandonLayer = 95
	TypeRemoveLayer  = 96
	TypeLayers       = 97
)

// Layer names an unpublished layer: the body of MakeLayer and AbandonLayer.
type Layer struct{ Name string }

// PublishLayer asks for the unpublished layer Name to become the layer ID.
type PublishLayer struct{ Name, ID string }

// RemoveLayer asks for the end of a published layer.
type RemoveLayer struct{ ID string }

// MaxLayers is how many layers are in one answer: they must fit into one frame.
const MaxLayers = 4096

// Layers asks for the published layers whose IDs come after After.
type Layers struct {
	After string `json:",omitempty"`
}

// LayerList answers Layers, sorted. More says that others come after the last.
type LayerList struct {
	IDs  []string
	More bool `json:",omitempty"`
}
