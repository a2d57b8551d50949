package api

import (
	"path/filepath"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/broker/server"
)

// LogDir is one of the broker's data directories.
type LogDir struct {
	Path string
	// Err is why it is offline, nil if it is not.
	Err error
	// TotalBytes and UsableBytes are those of its file system, -1 where they are not known.
	TotalBytes, UsableBytes int64
}

// FutureLog is a copy of a log on its way to another data directory.
type FutureLog struct {
	Dir       string
	Topic     string
	Partition int32
	Bytes     int64
	// Lag is how many offsets it is behind the log.
	Lag int64
}

// DescribeLogDirs, versions 1 to 5.
//
//	v3  an error code for the whole response
//	v4  the size of the file system and what is free of it (KIP-827)
//	v5  whether a directory takes no new partitions (KIP-1066): all take them
func (a *API) describeLogDirs(_ *server.Request, req *kmsg.DescribeLogDirsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.DescribeLogDirsResponse)
	byDir, future := a.partitionsByDir(req), a.FutureLogs()
	for _, dir := range a.LogDirs() {
		out := kmsg.NewDescribeLogDirsResponseDir()
		out.Dir, out.TotalBytes, out.UsableBytes = dir.Path, dir.TotalBytes, dir.UsableBytes
		if dir.Err != nil {
			out.ErrorCode = kerr.KafkaStorageError.Code
		} else {
			out.Topics = describeDir(byDir[dir.Path])
			for _, f := range future {
				if f.Dir == dir.Path && asked(req, f) {
					out.Topics = append(out.Topics, describeFuture(f))
				}
			}
		}
		resp.Dirs = append(resp.Dirs, out)
	}
	return resp
}

// partitionsByDir sorts the partitions that are asked for, all for null topics,
// by data directory.
func (a *API) partitionsByDir(req *kmsg.DescribeLogDirsRequest) map[string][]*replica.Partition {
	out := map[string][]*replica.Partition{}
	add := func(p *replica.Partition) {
		dir := filepath.Dir(p.Log().Dir())
		out[dir] = append(out[dir], p)
	}
	if req.Topics == nil {
		for _, p := range a.Partitions.All() {
			add(p)
		}
		return out
	}
	for _, t := range req.Topics {
		for _, index := range t.Partitions {
			if p := a.Partitions.Get(t.Topic, index); p != nil {
				add(p)
			}
		}
	}
	return out
}

func describeDir(partitions []*replica.Partition) []kmsg.DescribeLogDirsResponseDirTopic {
	var out []kmsg.DescribeLogDirsResponseDirTopic
	for _, p := range partitions { // those of a topic are neighbours
		if len(out) == 0 || out[len(out)-1].Topic != p.Topic() {
			t := kmsg.NewDescribeLogDirsResponseDirTopic()
			t.Topic = p.Topic()
			out = append(out, t)
		}
		d := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
		d.Partition, d.Size = p.Index(), p.Log().Size()
		t := &out[len(out)-1]
		t.Partitions = append(t.Partitions, d)
	}
	return out
}

func asked(req *kmsg.DescribeLogDirsRequest, f FutureLog) bool {
	return req.Topics == nil || slices.ContainsFunc(req.Topics, func(t kmsg.DescribeLogDirsRequestTopic) bool {
		return t.Topic == f.Topic && slices.Contains(t.Partitions, f.Partition)
	})
}

func describeFuture(f FutureLog) kmsg.DescribeLogDirsResponseDirTopic {
	d := kmsg.NewDescribeLogDirsResponseDirTopicPartition()
	d.Partition, d.Size, d.OffsetLag, d.IsFuture = f.Partition, f.Bytes, f.Lag, true
	t := kmsg.NewDescribeLogDirsResponseDirTopic()
	t.Topic, t.Partitions = f.Topic, append(t.Partitions, d)
	return t
}

// AlterReplicaLogDirs, versions 1 and 2; version 2 is flexible. The answer says that a
// move has begun; DescribeLogDirs tells how far it is. The response has no room for
// the reason of a refusal, which is logged.
func (a *API) alterReplicaLogDirs(_ *server.Request, req *kmsg.AlterReplicaLogDirsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterReplicaLogDirsResponse)
	topics := grouped{}
	for _, d := range req.Dirs {
		for _, t := range d.Topics {
			i := topics.at(t.Topic, len(resp.Topics), func() {
				out := kmsg.NewAlterReplicaLogDirsResponseTopic()
				out.Topic = t.Topic
				resp.Topics = append(resp.Topics, out)
			})
			for _, index := range t.Partitions {
				out := kmsg.NewAlterReplicaLogDirsResponseTopicPartition()
				out.Partition, out.ErrorCode = index, a.moveLog(t.Topic, index, d.Dir)
				resp.Topics[i].Partitions = append(resp.Topics[i].Partitions, out)
			}
		}
	}
	return resp
}

func (a *API) moveLog(topic string, partition int32, dir string) int16 {
	dir = filepath.Clean(dir)
	known := false
	for _, d := range a.LogDirs() {
		if d.Path != dir {
			continue
		}
		if known = true; d.Err != nil {
			return kerr.KafkaStorageError.Code
		}
	}
	if !known {
		return kerr.LogDirNotFound.Code
	}
	p, code := a.find(topic, [16]byte{}, false, partition)
	if p == nil {
		return code
	}
	if err := a.MoveLog(p, dir); err != nil {
		a.Log.Error("a log cannot be moved to another data directory", "topic", topic, "partition", partition, "to", dir, "error", err)
		return kerr.KafkaStorageError.Code
	}
	return 0
}
