package clickhouse

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ClickHouse/ch-go/proto"

	"github.com/sluice-io/sluice/sinks"
)

// answer is what an error of the server means for the batch. It is never taken for the fault of a record: the values were checked before they were sent, and
// which records break a constraint of the table is asked (see constraint.go).
type answer struct {
	helps error  // what helps beside waiting, as the sinks name it; nil: nothing
	mend  string // for the operator; "" when it passes by itself
}

var (
	schemaChanged = answer{helps: sinks.ErrSchemaChanged}
	tooMuch       = answer{helps: sinks.ErrTooMuch}
	tooOften      = answer{helps: sinks.ErrTooOften}
)

// expressionFails is what an expression of the table's answers that cannot be worked out for some row. Nothing says which, nor whether the table has stored the rest: where it is a
// view's it has, and only the batch as a whole, repeated, fills the view.
var expressionFails = answer{mend: "an expression of the table (a default, a key) or of a materialised view fails on a row of the batch: mend the expression, " +
	"or have a stage of the sink drop or change such records; until then the batch is held, and the partition behind it"}

// Codes that the client's list does not have.
const (
	errViolatedConstraint proto.Error = 469
	errTableReadOnly      proto.Error = 774
)

// answers are the codes that say more than that a write failed.
var answers = map[proto.Error]answer{
	proto.ErrNoSuchColumnInTable:   schemaChanged,
	proto.ErrNotFoundColumnInBlock: schemaChanged,
	proto.ErrUnknownIdentifier:     schemaChanged,
	proto.ErrTypeMismatch:          schemaChanged,
	proto.ErrUnknownTable:          schemaChanged,
	proto.ErrUnknownDatabase:       schemaChanged,
	proto.ErrThereIsNoColumn:       schemaChanged,
	proto.ErrCannotConvertType:     schemaChanged,
	proto.ErrIllegalColumn:         schemaChanged,
	proto.ErrTableIsDropped:        schemaChanged,

	proto.ErrMemoryLimitExceeded:  tooMuch,
	proto.ErrCannotAllocateMemory: tooMuch,
	proto.ErrTooManyRowsOrBytes:   tooMuch,
	proto.ErrTooManyBytes:         tooMuch,
	proto.ErrTooManyRows:          tooMuch,
	proto.ErrTimeoutExceeded:      tooMuch, // unless it is a lock's: see answerOf
	proto.ErrTooSlow:              tooMuch,

	proto.ErrTooManyParts:               tooOften,
	proto.ErrTooManySimultaneousQueries: tooOften,
	proto.ErrNoFreeConnection:           tooOften,
	proto.ErrPartIsTemporarilyLocked:    tooOften,

	proto.ErrReadonly:        {mend: "the user may only read: give it a profile without readonly"},
	proto.ErrAccessDenied:    {mend: "the user may not do that: GRANT SELECT, INSERT on the table to it"},
	proto.ErrQuotaExceeded:   {mend: "the user's quota is used up: raise it, or wait for its next interval"},
	proto.ErrTableIsReadOnly: {mend: "the table is read-only: see system.replicas, and whether its Keeper or ZooKeeper can be reached"},
	errTableReadOnly:         {mend: "the table is set to be read-only: ALTER TABLE ... MODIFY SETTING table_readonly = 0"},
	proto.ErrNotEnoughSpace:  {mend: "the server's disk is full: make room on it"},
	errViolatedConstraint:    {mend: "a CONSTRAINT of a table that a materialised view fills refuses the batch: drop it, or have the view leave such rows out"},

	proto.ErrFunctionThrowIfValueIsNonZero:     expressionFails,
	proto.ErrCannotParseText:                   expressionFails,
	proto.ErrCannotParseInputAssertionFailed:   expressionFails,
	proto.ErrCannotParseDate:                   expressionFails,
	proto.ErrCannotParseDatetime:               expressionFails,
	proto.ErrCannotParseNumber:                 expressionFails,
	proto.ErrArgumentOutOfBound:                expressionFails,
	proto.ErrIllegalDivision:                   expressionFails,
	proto.ErrDecimalOverflow:                   expressionFails,
	proto.ErrNoZookeeper:                       {mend: "the server does not reach its Keeper or ZooKeeper"},
	proto.ErrKeeperException:                   {mend: "the server does not reach its Keeper or ZooKeeper"},
	proto.ErrTooFewLiveReplicas:                {mend: "there are fewer replicas than the sink's quorum asks for: start them, or lower `quorum`"},
	proto.ErrUnsatisfiedQuorumForPreviousWrite: {mend: "the insert before has not reached its quorum yet: see whether the other replicas are up"},
}

// lockTimeout is in the message when it is a lock that was waited for in vain.
const lockTimeout = "ock timeout"

func answerOf(e serverError) answer {
	if e.code == proto.ErrTimeoutExceeded && strings.Contains(e.message, lockTimeout) {
		return tooOften
	}
	return answers[e.code]
}

// explain marks errors that a newer look at the table explains better, and those for which other batches help, and says what to do about others.
func explain(err error) error {
	e, ok := serverErrorOf(err)
	if !ok {
		return err
	}
	a := answerOf(e)
	if a.mend != "" {
		err = fmt.Errorf("%w; %s", err, a.mend)
	}
	if a.helps != nil {
		err = errors.Join(a.helps, err)
	}
	return err
}
