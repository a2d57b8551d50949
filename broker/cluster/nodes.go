package cluster

import (
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Paths of the tree; see the package comment.
const (
	clusterPath         = "/cluster"
	clusterIDPath       = "/cluster/id"
	brokersPath         = "/brokers"
	brokerIDsPath       = "/brokers/ids"
	topicsPath          = "/brokers/topics"
	configPath          = "/config"
	topicConfigsPath    = "/config/topics"
	brokerConfigsPath   = "/config/brokers"
	controllerPath      = "/controller"
	controllerEpochPath = "/controller_epoch"
	producerIDsPath     = "/latest_producer_id_block"
	adminPath           = "/admin"
	deleteTopicsPath    = "/admin/delete_topics"
	diskEventsPath      = "/log_dir_event_notification"
	knownBrokersPath    = "/brokers/known"
)

// allBrokersNode is the node of the settings for all brokers, under Kafka's name.
const allBrokersNode = "<default>"

// persistentPaths are made at the first start, parents before children.
var persistentPaths = []string{
	clusterPath, brokersPath, brokerIDsPath, topicsPath,
	configPath, topicConfigsPath, brokerConfigsPath, adminPath, deleteTopicsPath, diskEventsPath,
}

func brokerPath(id int32) string         { return brokerIDsPath + "/" + strconv.Itoa(int(id)) }
func topicPath(name string) string       { return topicsPath + "/" + name }
func topicConfigPath(name string) string { return topicConfigsPath + "/" + name }
func brokerConfigPath(broker string) string {
	if broker == AllBrokers {
		broker = allBrokersNode
	}
	return brokerConfigsPath + "/" + broker
}
func partitionsPath(name string) string  { return topicPath(name) + "/partitions" }
func deleteTopicPath(name string) string { return deleteTopicsPath + "/" + name }
func partitionPath(name string, p int32) string {
	return partitionsPath(name) + "/" + strconv.Itoa(int(p))
}
func statePath(name string, p int32) string { return partitionPath(name, p) + "/state" }

// mustJSON marshals what cannot fail: structs of plain fields.
func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("marshal %T: %v", v, err))
	}
	return b
}

func parseNode(what string, data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("read %s %q: %w", what, data, err)
	}
	return nil
}

type clusterIDNode struct {
	Version string `json:"version"`
	ID      string `json:"id"`
}

// brokerNode is Kafka's registration of version 5. The fields after Timestamp
// are ours; Kafka ignores what it does not know.
type brokerNode struct {
	Features    struct{}          `json:"features"`
	Listeners   map[string]string `json:"listener_security_protocol_map"`
	Endpoints   []string          `json:"endpoints"`
	JMXPort     int               `json:"jmx_port"`
	Port        int32             `json:"port"`
	Host        string            `json:"host"`
	Version     int               `json:"version"`
	Timestamp   string            `json:"timestamp"`
	Rack        string            `json:"rack,omitempty"`
	BootID      string            `json:"boot_id,omitempty"`
	DirectoryID string            `json:"directory_id,omitempty"`
	Clean       bool              `json:"clean"`
	Lost        bool              `json:"lost,omitempty"`
	Replaced    bool              `json:"replaced,omitempty"`
}

// parseBrokerNode reads a registration; epoch is the transaction that made it.
func parseBrokerNode(id int32, data []byte, epoch int64) (Broker, error) {
	var n brokerNode
	if err := parseNode("broker registration", data, &n); err != nil {
		return Broker{}, err
	}
	endpoints, err := n.endpoints()
	if err != nil {
		return Broker{}, fmt.Errorf("read registration of broker %d: %w", id, err)
	}
	return Broker{
		ID: id, Host: n.Host, Port: n.Port, Rack: n.Rack, Epoch: epoch, Endpoints: endpoints,
		Clean: n.Clean, Lost: n.Lost, Replaced: n.Replaced,
	}, nil
}

// plaintext is the security protocol, and the name of a listener that has no other.
const plaintext = "PLAINTEXT"

// endpoints reads the addresses of a registration.
func (n brokerNode) endpoints() ([]Endpoint, error) {
	var out []Endpoint
	for _, address := range n.Endpoints {
		name, hostPort, _ := strings.Cut(address, "://")
		host, portText, err := net.SplitHostPort(hostPort)
		if err != nil {
			return nil, fmt.Errorf("read endpoint %q: %w", address, err)
		}
		port, err := strconv.ParseInt(portText, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read endpoint %q: %w", address, err)
		}
		out = append(out, Endpoint{name, host, int32(port)})
	}
	return out, nil
}

func newBrokerNode(r Registration, now time.Time) []byte {
	b := r.Broker
	endpoints := b.Endpoints
	if len(endpoints) == 0 {
		endpoints = []Endpoint{{plaintext, b.Host, b.Port}}
	}
	listeners, addresses := map[string]string{}, []string{}
	for _, e := range endpoints {
		listeners[e.Listener] = plaintext
		addresses = append(addresses, e.Listener+"://"+net.JoinHostPort(e.Host, strconv.Itoa(int(e.Port))))
	}
	return mustJSON(brokerNode{
		Listeners:   listeners,
		Endpoints:   addresses,
		JMXPort:     -1,
		Port:        b.Port,
		Host:        b.Host,
		Version:     5,
		Timestamp:   millis(now),
		Rack:        b.Rack,
		BootID:      r.BootID,
		DirectoryID: r.DirectoryID,
		Clean:       r.Clean,
		Lost:        r.Lost,
		Replaced:    r.Replaced,
	})
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }

type controllerNode struct {
	Version   int    `json:"version"`
	BrokerID  int32  `json:"brokerid"`
	Timestamp string `json:"timestamp"`
	KRaft     int32  `json:"kraftControllerEpoch"`
}

type topicNodeJSON struct {
	Partitions map[string][]int32 `json:"partitions"`
	TopicID    string             `json:"topic_id"`
	Adding     map[string][]int32 `json:"adding_replicas"`
	Removing   map[string][]int32 `json:"removing_replicas"`
	Version    int                `json:"version"`
}

func topicNode(t *Topic) []byte {
	n := topicNodeJSON{
		Partitions: make(map[string][]int32, len(t.Partitions)),
		TopicID:    FormatTopicID(t.ID),
		Adding:     map[string][]int32{},
		Removing:   map[string][]int32{},
		Version:    3,
	}
	for i, p := range t.Partitions {
		key := strconv.Itoa(i)
		n.Partitions[key] = p.Replicas
		if len(p.Adding) > 0 {
			n.Adding[key] = p.Adding
		}
		if len(p.Removing) > 0 {
			n.Removing[key] = p.Removing
		}
	}
	return mustJSON(n)
}

// parseTopicNode returns a topic whose partitions have replicas but no leader yet.
func parseTopicNode(name string, data []byte) (*Topic, error) {
	var n topicNodeJSON
	if err := parseNode("topic "+name, data, &n); err != nil {
		return nil, err
	}
	id, err := ParseTopicID(n.TopicID)
	if err != nil {
		return nil, fmt.Errorf("read topic %s: %w", name, err)
	}
	t := &Topic{Name: name, ID: id, Internal: IsInternal(name), Partitions: make([]Partition, len(n.Partitions))}
	for i := range t.Partitions {
		replicas, ok := n.Partitions[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("read topic %s: partition %d of %d is missing", name, i, len(n.Partitions))
		}
		key := strconv.Itoa(i)
		t.Partitions[i] = Partition{Leader: NoLeader, Replicas: replicas, Adding: orNil(n.Adding[key]), Removing: orNil(n.Removing[key])}
	}
	return t, nil
}

func orEmpty(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

type stateNodeJSON struct {
	ControllerEpoch int32   `json:"controller_epoch"`
	Leader          int32   `json:"leader"`
	Version         int     `json:"version"`
	LeaderEpoch     int32   `json:"leader_epoch"`
	ISR             []int32 `json:"isr"`
}

func stateNode(p Partition, controllerEpoch int32) []byte {
	return mustJSON(stateNodeJSON{
		ControllerEpoch: controllerEpoch, Leader: p.Leader, Version: 1,
		LeaderEpoch: p.LeaderEpoch, ISR: orEmpty(p.ISR),
	})
}

// readState fills in p from its state node.
func (p *Partition) readState(what string, data []byte, version int32) error {
	var n stateNodeJSON
	if err := parseNode("state of "+what, data, &n); err != nil {
		return err
	}
	p.Leader, p.LeaderEpoch, p.ISR, p.PartitionEpoch = n.Leader, n.LeaderEpoch, orEmpty(n.ISR), version
	return nil
}

type configNodeJSON struct {
	Version int               `json:"version"`
	Config  map[string]string `json:"config"`
}

func configNode(config map[string]string) []byte {
	if config == nil {
		config = map[string]string{}
	}
	return mustJSON(configNodeJSON{Version: 1, Config: config})
}

func parseConfigNode(what string, data []byte) (map[string]string, error) {
	var n configNodeJSON
	if err := parseNode("configuration of "+what, data, &n); err != nil {
		return nil, err
	}
	return n.Config, nil
}

type producerIDsJSON struct {
	Version int    `json:"version"`
	Broker  int32  `json:"broker"`
	Start   string `json:"block_start"`
	End     string `json:"block_end"`
}

func producerIDsNode(broker int32, first, last int64) []byte {
	return mustJSON(producerIDsJSON{
		Version: 1, Broker: broker,
		Start: strconv.FormatInt(first, 10), End: strconv.FormatInt(last, 10),
	})
}

func parseProducerIDsNode(data []byte) (first, last int64, err error) {
	var n producerIDsJSON
	if err := parseNode("producer id block", data, &n); err != nil {
		return 0, 0, err
	}
	if first, err = strconv.ParseInt(n.Start, 10, 64); err == nil {
		last, err = strconv.ParseInt(n.End, 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("read producer id block %q: %w", data, err)
	}
	return first, last, nil
}
