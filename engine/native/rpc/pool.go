package rpc

// TypePool is the type of a request without a body, whose reply is an [engine.PoolState].
const TypePool = 100
