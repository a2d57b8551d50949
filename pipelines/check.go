package pipelines

import (
	"fmt"
	"slices"
)

// places is where the keys of a document stand.
type places struct {
	keys, topic, errors map[string]Pos
}

// finish fills in defaults and checks the parts of a document against each other.
func (r *yamlReader) finish(p *Pipeline, at places) {
	r.require(at.keys, p.Pos, "", "pipeline")
	r.checkParts(p, at)
	r.finishTopic(p, at)
	r.finishErrors(p, at)
	fields := r.finishProcess(p)
	for _, s := range p.Sinks {
		s.Pipeline = p.Name
		s.upstream = fields
		r.finishSink(s)
	}
}

func (r *yamlReader) checkParts(p *Pipeline, at places) {
	_, collect := at.keys["collect"]
	_, sink := at.keys["sink"]
	sinks, several := at.keys["sinks"]
	if !collect && !sink && !several {
		r.errorAt(p.Pos, "the pipeline does nothing: it has neither collect nor sink")
	}
	if sink && several {
		r.errorAt(sinks, "sink and sinks: use one of them")
	}
	if pos, ok := at.keys["process"]; ok && !collect && len(p.Process) > 0 {
		r.errorAt(pos, "process runs in the agent, and the pipeline has no collect: put the stages under sink.process")
	}
}

// Where three replicas are kept, two must have a record before it is acknowledged.
const (
	minInSyncSetting  = "min.insync.replicas"
	minInSyncOfThree  = "2"
	replicasForInSync = 3
)

func (r *yamlReader) finishTopic(p *Pipeline, at places) {
	if _, ok := at.topic["name"]; !ok {
		p.Topic.Name = p.Name
	}
	if p.Topic.Compression == "" {
		p.Topic.Compression = CompressionAuto
	}
	if p.Topic.Spread == "" {
		p.Topic.Spread = SpreadFile
	}
	if p.Topic.OnUnknown == "" {
		p.Topic.OnUnknown = OnUnknownResend
	}
	set := slices.ContainsFunc(p.Topic.Config, func(l Label) bool { return l.Name == minInSyncSetting })
	if p.Topic.Replicas >= replicasForInSync && !set {
		p.Topic.Config = append(p.Topic.Config, Label{minInSyncSetting, minInSyncOfThree})
	}
}

func (r *yamlReader) finishErrors(p *Pipeline, at places) {
	e := &p.Errors
	if _, ok := at.errors["dead_letter_share"]; !ok {
		e.DeadLetterShare = deadLetterShareDefault
	}
	_, hasPolicy := at.errors["parse"]
	if !hasPolicy {
		e.Parse = ErrorsKeep
		if e.DeadLetter != "" {
			e.Parse = ErrorsDeadLetter
		}
	}
	if _, hasTopic := at.errors["dead_letter"]; e.Parse == ErrorsDeadLetter && !hasTopic {
		r.errorAt(at.errors["parse"], "errors.parse: dead_letter needs a topic: errors.dead_letter is missing")
	}
	if e.DeadLetter != "" && e.DeadLetter == p.Topic.Name {
		r.errorAt(at.errors["dead_letter"], "errors.dead_letter: %q is the pipeline's own topic; dead letters need another", e.DeadLetter)
	}
}

// finishProcess checks the stages in the agent and returns what is known of
// the topic's records.
func (r *yamlReader) finishProcess(p *Pipeline) knownFields {
	if p.Collect == nil {
		p.Topic.Value = ValueRaw
		return knownFields{}
	}
	fields := knownFields{complete: true}
	if s := p.Collect.stage(); s != nil {
		r.checkStages([]Stage{s}, "collect", &fields, p.Collect.Labels)
		fields.parsedBy = fmt.Sprintf(", by the input; collect.%s.format: raw leaves that to the stages", p.Collect.Input())
		if p.Collect.File != nil {
			fields.parsedBy = ", by collect.file.container.json"
		}
	}
	r.checkStages(p.Process, "process", &fields, p.Collect.Labels)
	r.checkNames(p.Topic.Key, "topic.key", &fields)
	r.checkNames(p.Topic.Hash, "topic.hash", &fields)
	r.checkNames(p.Topic.Partition, "topic.partition", &fields)
	r.checkNames(p.Topic.NameFrom, "topic.name_from", &fields)
	p.Topic.Value = ValueRaw
	if fields.parsed {
		p.Topic.Value = ValueEvent
	}
	for i, kind := range fields.kinds {
		if kind == KindTime {
			p.times = append(p.times, timeField{name: fields.names[i], place: i})
		}
	}
	return fields
}

// checkStages follows the fields through the stages and checks their order.
func (r *yamlReader) checkStages(stages []Stage, what string, fields *knownFields, labels []Label) {
	for i, stage := range stages {
		what := fmt.Sprintf("%s[%d]", what, i)
		switch s := stage.(type) {
		case *ParseStage:
			if fields.parsed {
				r.errorAt(s.Pos, "%s: the line has been parsed before this stage%s", what, fields.parsedBy)
			}
		case *DropStage:
			r.checkNames(s.Cond, what+".drop", fields)
		case *SetStage:
			r.checkSet(s, what, fields)
		}
		stage.follow(fields)
		if _, ok := stage.(*ParseStage); !ok {
			continue
		}
		for _, l := range labels {
			if !slices.Contains(fields.names, l.Name) {
				fields.set(l.Name, KindString)
			}
		}
	}
}

func (r *yamlReader) checkSet(s *SetStage, what string, fields *knownFields) {
	if !fields.parsed {
		r.errorAt(s.Pos, "%s: a raw line has no fields to set; put a parse stage before it", what)
		return
	}
	seen := fields.clone()
	for _, f := range s.Fields {
		if _, ok := reserved[f.Name]; ok {
			r.errorAt(f.Expr.Pos, "%s.set: %s cannot be set: it is not a field", what, f.Name)
		}
		r.checkNames(f.Expr, what+".set."+f.Name, &seen)
		seen.set(f.Name, KindNull)
	}
}

// checkNames refuses names that no event can have, where all fields are known.
func (r *yamlReader) checkNames(s *Source, what string, fields *knownFields) {
	if s == nil || !fields.parsed || !fields.complete {
		return
	}
	known := slices.Concat(fields.names, nginxOptional[:], []string{"host"})
	for _, n := range s.names() {
		if _, ok := reserved[n.name]; ok || slices.Contains(known, n.name) {
			continue
		}
		line, col := lineAndColumn(s.Text, n.at)
		err := &Error{
			Pos:        s.place(line, col),
			Message:    fmt.Sprintf("%s: no field %s", what, n.name),
			Suggestion: nearest(n.name, known),
		}
		if err.Suggestion == "" {
			err.Message += fmt.Sprintf("; the fields here are %v", known)
		}
		r.errs = append(r.errs, err)
	}
}

func (r *yamlReader) finishSink(s *SinkSpec) {
	what := "sink"
	if s.Name != "" {
		what = "sinks." + s.Name
	}
	for i, stage := range s.Process {
		if p, ok := stage.(*ParseStage); ok && p.Parser == ParserSyslog && (p.Zone == "" || p.Zone == zoneLocal) {
			r.errorAt(p.Pos, "%s.process[%d].parse: a sink's rows must not depend on the machine: name the time zone, parse: {syslog: {zone: UTC}}", what, i)
		}
	}
	fields := s.upstream.clone()
	r.checkStages(s.Process, what+".process", &fields, nil)
	for _, c := range s.Columns {
		r.checkNames(c.Expr, what+" column "+c.Name, &fields)
	}
	r.checkPlaces(s, what, &fields)
}

// checkPlaces checks the names in what decides on a row's path.
func (r *yamlReader) checkPlaces(s *SinkSpec, what string, fields *knownFields) {
	f := s.Files()
	if f == nil || f.Partition == nil {
		return
	}
	r.checkNames(f.Partition.Time, what+" partition.time", fields)
	for _, t := range []*PathTemplate{f.Partition.Path, f.Partition.LatePath} {
		if t == nil {
			continue
		}
		for _, part := range t.Parts {
			r.checkNames(part.Expr, what+" path", fields)
		}
	}
}

// checkTogether checks pipelines that are to run beside each other.
func checkTogether(pipes []*Pipeline) ErrorList {
	var errs ErrorList
	byName, byTopic := map[string]*Pipeline{}, map[string]*Pipeline{}
	groups := map[string]*SinkSpec{}
	for _, p := range pipes {
		if p.Name == "" {
			continue
		}
		if first, twice := byName[p.Name]; twice {
			errs = append(errs, &Error{Pos: p.Pos, Message: fmt.Sprintf("pipeline %q is there twice, first at %s", p.Name, first.Pos)})
			continue
		}
		byName[p.Name] = p
		errs = append(errs, checkSharedTopic(byTopic, p)...)
		for _, s := range p.Sinks {
			if first, twice := groups[s.Group()]; twice {
				errs = append(errs, &Error{Pos: s.Pos, Message: fmt.Sprintf("two sinks would be one consumer group %q, the other at %s", s.Group(), first.Pos)})
			}
			groups[s.Group()] = s
		}
	}
	return append(errs, checkDeadLetters(pipes, byTopic)...)
}

// checkSharedTopic lets pipelines write into one topic when they agree on it.
func checkSharedTopic(byTopic map[string]*Pipeline, p *Pipeline) ErrorList {
	if p.Collect == nil {
		return nil
	}
	first, shared := byTopic[p.Topic.Name]
	if !shared {
		byTopic[p.Topic.Name] = p
		return nil
	}
	a, b := &first.Topic, &p.Topic
	if a.Value == b.Value && a.Partitions == b.Partitions && a.Replicas == b.Replicas {
		return nil
	}
	return ErrorList{{Pos: p.Pos, Message: fmt.Sprintf(
		"topic %q is pipeline %q's too (%s), and they differ on it: value %s and %s, partitions %d and %d, replicas %d and %d",
		b.Name, first.Name, first.Pos, b.Value, a.Value, b.Partitions, a.Partitions, b.Replicas, a.Replicas)}}
}

func checkDeadLetters(pipes []*Pipeline, byTopic map[string]*Pipeline) ErrorList {
	var errs ErrorList
	for _, p := range pipes {
		other, ok := byTopic[p.Errors.DeadLetter]
		if ok && other != p {
			errs = append(errs, &Error{Pos: p.Pos, Message: fmt.Sprintf(
				"errors.dead_letter: %q is the topic of pipeline %q (%s); dead letters need another", p.Errors.DeadLetter, other.Name, other.Pos)})
		}
	}
	return errs
}
