package producer

type flight struct{}
type TopicSpec struct {
	Name       string
	Partitions int32
	Replicas   int16
	Config     map[string]string
}
