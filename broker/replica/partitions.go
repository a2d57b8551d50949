package replica

// Partitions finds the partitions of this node.
type Partitions struct{}
