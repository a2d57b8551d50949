package api

// adminRoutes are the requests of operators.
func adminRoutes() []route {
	return []route{
		{key: 33, min: 0, max: 2, handle: direct((*API).replaceConfigs), controller: true},
		{key: 34, min: 1, max: 2, handle: direct((*API).alterReplicaLogDirs)},
		{key: 35, min: 1, max: 5, handle: direct((*API).describeLogDirs)},
		{key: 43, min: 0, max: 2, handle: direct((*API).electLeaders), controller: true},
		{key: 44, min: 0, max: 1, handle: direct((*API).incrementalAlterConfigs), controller: true},
		{key: 45, min: 0, max: 1, handle: direct((*API).alterReassignments), controller: true},
		{key: 46, min: 0, max: 0, handle: direct((*API).listReassignments), controller: true},
		{key: 61, min: 0, max: 0, handle: direct((*API).describeProducers)},
		{key: 64, min: 0, max: 0, handle: direct((*API).unregisterBroker)},
		{key: 74, min: 0, max: 1, handle: direct((*API).listConfigResources)},
		{key: 75, min: 0, max: 0, handle: direct((*API).describeTopicPartitions)},
	}
}
