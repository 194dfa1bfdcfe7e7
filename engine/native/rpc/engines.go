package rpc

import "github.com/boxd/boxd/engine"

// TypeEngines asks which engines can build boxes; its body is empty, the reply an [EngineList].
const TypeEngines = 99

// EngineList answers TypeEngines, see engine.Choosing.
type EngineList struct{ Engines []engine.EngineState }
