package api

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/sluice-io/sluice/broker/commitlog"
	"github.com/sluice-io/sluice/broker/replica"
	"github.com/sluice-io/sluice/internal/record"
)

var (
	// errUnsupported closes the connection of a client that sends what was never advertised.
	errUnsupported = errors.New("unsupported request")
	// errNotReady closes the connection of a client that came long before this broker was
	// told of the cluster; it tries another one.
	errNotReady = errors.New("not ready")
	// errMalformed closes the connection of a client whose request does not decode.
	errMalformed = errors.New("malformed request")
)

// dataCodes maps errors of the data path. The first that matches counts.
var dataCodes = []struct {
	err  error
	code int16
}{
	{replica.ErrNotLeader, kerr.NotLeaderForPartition.Code},
	{replica.ErrOffline, kerr.KafkaStorageError.Code},
	{replica.ErrDeleted, kerr.UnknownTopicOrPartition.Code},
	{replica.ErrFencedEpoch, kerr.FencedLeaderEpoch.Code},
	{replica.ErrUnknownEpoch, kerr.UnknownLeaderEpoch.Code},
	{replica.ErrNotEnoughReplicas, kerr.NotEnoughReplicas.Code},
	{replica.ErrNotEnoughReplicasAfterAppend, kerr.NotEnoughReplicasAfterAppend.Code},
	{replica.ErrOffsetNotAvailable, kerr.OffsetNotAvailable.Code},
	{replica.ErrUnknownReplica, kerr.UnknownLeaderEpoch.Code},
	{replica.ErrStaleBrokerEpoch, kerr.StaleBrokerEpoch.Code},
	{commitlog.ErrOffsetOutOfRange, kerr.OffsetOutOfRange.Code},
	{commitlog.ErrOutOfOrderSequence, kerr.OutOfOrderSequenceNumber.Code},
	{commitlog.ErrInvalidProducerEpoch, kerr.InvalidProducerEpoch.Code},
	{commitlog.ErrBatchTooLarge, kerr.RecordListTooLarge.Code},
	{commitlog.ErrNoSpace, kerr.KafkaStorageError.Code},
	{commitlog.ErrOffline, kerr.KafkaStorageError.Code},
	{commitlog.ErrClosed, kerr.NotLeaderForPartition.Code},
	{record.ErrMagic, kerr.InvalidRecord.Code},
	{record.ErrShort, kerr.InvalidRecord.Code},
	{record.ErrCorrupt, kerr.CorruptMessage.Code},
}

// dataCode returns the protocol's code for an error of the data path.
func dataCode(err error) int16 {
	if err == nil {
		return 0
	}
	var coded *codedError
	if errors.As(err, &coded) {
		return coded.code
	}
	for _, c := range dataCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return invalidRecordCode(err)
}

func invalidRecordCode(err error) int16 {
	var invalid *record.InvalidRecordError
	switch {
	case !errors.As(err, &invalid):
		return kerr.UnknownServerError.Code
	case invalid.Fault == record.FaultTimestamp:
		return kerr.InvalidTimestamp.Code
	}
	return kerr.InvalidRecord.Code
}
