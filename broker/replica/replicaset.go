package replica

import (
	"fmt"
	"strconv"
	"strings"
)

// ReplicaSet names replicas of a topic, as the settings
// leader.replication.throttled.replicas and follower.replication.throttled.replicas
// do. The zero value has none. It is immutable.
type ReplicaSet struct {
	all   bool
	named map[replicaName]struct{}
}

type replicaName struct{ partition, broker int32 }

// ParseReplicaSet reads a setting: PARTITION:BROKER between commas, * for all
// replicas, nothing or none for none.
func ParseReplicaSet(value string) (ReplicaSet, error) {
	var set ReplicaSet
	for word := range strings.SplitSeq(value, ",") {
		word = strings.TrimSpace(word)
		switch word {
		case "", "none":
			continue
		case "*":
			set.all = true
			continue
		}
		name, err := parseReplicaName(word)
		if err != nil {
			return ReplicaSet{}, err
		}
		if set.named == nil {
			set.named = map[replicaName]struct{}{}
		}
		set.named[name] = struct{}{}
	}
	return set, nil
}

func parseReplicaName(word string) (replicaName, error) {
	left, right, _ := strings.Cut(word, ":")
	partition, err := strconv.ParseInt(left, 10, 32)
	broker, err2 := strconv.ParseInt(right, 10, 32)
	if err != nil || err2 != nil || partition < 0 || broker < 0 {
		return replicaName{}, fmt.Errorf("%q is not PARTITION:BROKER", word)
	}
	return replicaName{int32(partition), int32(broker)}, nil
}

// Has tells whether a replica is in the set.
func (s ReplicaSet) Has(partition, broker int32) bool {
	if s.all {
		return true
	}
	_, ok := s.named[replicaName{partition, broker}]
	return ok
}
