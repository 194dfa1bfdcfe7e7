package rpc

import "github.com/boxd/boxd/engine"

// TypeEngines asks which engines can build boxes; its body is an [Engines], the reply an [EngineList].
const TypeEngines = 99

// Engines asks for the engines with this name and this isolation. An empty word stands for all.
type Engines struct{ Engine, Isolation string }

// EngineList answers TypeEngines, see engine.Choosing.
type EngineList struct{ Engines []engine.EngineState }
