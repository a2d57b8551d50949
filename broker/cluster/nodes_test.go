package cluster

import "testing"

// kafkaNodes are nodes as Apache Kafka 3.9 writes them.
func kafkaNodes() map[string]string {
	return map[string]string{
		"broker":     `{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://127.0.0.1:19192"],"jmx_port":-1,"port":19192,"host":"127.0.0.1","version":5,"timestamp":"1796026952190"}`,
		"topic":      `{"partitions":{"0":[1],"1":[1]},"topic_id":"pTnOWKcnS2Wx0qF49ttPiQ","adding_replicas":{},"removing_replicas":{},"version":3}`,
		"state":      `{"controller_epoch":1,"leader":1,"version":1,"leader_epoch":0,"isr":[1]}`,
		"controller": `{"version":2,"brokerid":1,"timestamp":"1796026952637","kraftControllerEpoch":-1}`,
		"config":     `{"version":1,"config":{"retention.ms":"3600000"}}`,
		"ids":        `{"version":1,"broker":1,"block_start":"0","block_end":"999"}`,
	}
}

func TestKafkasNodesAreRead(t *testing.T) {
	nodes := kafkaNodes()
	b, err := parseBrokerNode(1, []byte(nodes["broker"]), 7)
	if host, port := b.At("PLAINTEXT"); err != nil || host != "127.0.0.1" || port != 19192 || b.Epoch != 7 {
		t.Errorf("%+v, %v", b, err)
	}
	topic, err := parseTopicNode("zt", []byte(nodes["topic"]))
	if err != nil || len(topic.Partitions) != 2 || FormatTopicID(topic.ID) != "pTnOWKcnS2Wx0qF49ttPiQ" {
		t.Fatalf("%+v, %v", topic, err)
	}
	if err := topic.Partitions[0].readState("zt-0", []byte(nodes["state"]), 3); err != nil || topic.Partitions[0].Leader != 1 || topic.Partitions[0].PartitionEpoch != 3 {
		t.Errorf("%+v, %v", topic.Partitions[0], err)
	}
	if config, err := parseConfigNode("zt", []byte(nodes["config"])); err != nil || config["retention.ms"] != "3600000" {
		t.Errorf("%v, %v", config, err)
	}
	if first, last, err := parseProducerIDsNode([]byte(nodes["ids"])); err != nil || first != 0 || last != 999 {
		t.Errorf("%d to %d, %v", first, last, err)
	}
	var n controllerNode
	if err := parseNode("controller", []byte(nodes["controller"]), &n); err != nil || n.BrokerID != 1 {
		t.Errorf("%+v, %v", n, err)
	}
}

// FuzzNodes reads what a cluster keeps in its store, which others can write too.
func FuzzNodes(f *testing.F) {
	for _, node := range kafkaNodes() {
		f.Add([]byte(node))
	}
	f.Add([]byte(`{"version":1,"directory_id":"x","lost":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = parseBrokerNode(1, data, 1)
		if topic, err := parseTopicNode("t", data); err == nil {
			again, err := parseTopicNode("t", topicNode(topic))
			if err != nil || again.ID != topic.ID || len(again.Partitions) != len(topic.Partitions) {
				t.Errorf("%+v was written, and is read as %+v, %v", topic, again, err)
			}
		}
		var p Partition
		_ = p.readState("t-0", data, 0)
		_, _ = parseConfigNode("t", data)
		_, _, _ = parseProducerIDsNode(data)
		_, _ = parseKnownNode(data)
		var d directoryNode
		_ = parseNode("directory", data, &d)
	})
}
