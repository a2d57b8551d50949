// Package pipelines is the YAML of Sluice: its schema, strict parsing with
// positions, the stages that work on a line, and the tests written in a file.
//
// One YAML document is one [Pipeline]. Each role reads its own part of the
// same document: the agent runs `collect` and `process`, the worker of a sink
// runs `sink.process` and the columns. The package is pure: apart from [Load],
// which reads the files it is given, and [Secret.Reveal], which reads the
// environment, nothing here does I/O, reads a clock or starts a goroutine.
//
// # Events
//
// A line or record is worked on as an [Event]: the raw bytes, a list of fields
// in a stable order, and what is known of the record ([Meta]). An Event is
// reused for line after line, so that parsing and encoding allocate nothing
// once its buffers have grown; a [Value] taken from it is valid until the next
// Reset.
//
// # Names in expressions
//
// An expression (conditions, `set`, columns, the topic's key) is in the
// language of github.com/expr-lang/expr. It sees
//
//   - the event's fields by name; one that is not there is nil;
//   - _raw (the line, or the record's value), _topic, _partition, _offset,
//     _time (the record's timestamp) and _key;
//   - headers, a map of the record's headers by name;
//   - host, the header of that name, when the event has no field host;
//   - on a raw line (nothing parsed yet) every header and label by its name.
//
// There is no clock and no randomness in it: what a stage does depends on the
// record alone, so that a rewrite after a crash gives the same bytes.
package pipelines
