package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/sluice-io/sluice/pipelines"
)

// reload takes other pipelines, those of the sinks first: records that are collected in the new way then find the new sinks. What is refused leaves everything as it was.
func (r *runner) reload(pipes []*pipelines.Pipeline) error {
	if err := r.check(pipes); err != nil {
		return err
	}
	groups := sinkGroups(pipes)
	r.hold(union(r.groups, groups)) // before a record can come that nobody waits for yet
	if err := r.sinks.Reload(pipes); err != nil {
		r.hold(r.groups)
		return err
	}
	var err error
	if r.agent != nil {
		if err = r.agent.Reload(collecting(pipes)); err != nil {
			err = fmt.Errorf("the sinks are those of the new files; of what is collected: %w", err)
		}
	}
	r.groups = groups
	r.hold(groups)
	return err
}

// check says why pipes cannot be taken by this process as it was started.
func (r *runner) check(pipes []*pipelines.Pipeline) error {
	for _, p := range pipes {
		switch {
		case p.Brokers == nil && r.broker == nil:
			return fmt.Errorf("%s: pipeline %s names no `brokers:`, and this process was started without an embedded broker since all pipelines named theirs: start it again", p.Pos, p.Name)
		case p.Collect != nil && r.agent == nil:
			return fmt.Errorf("%s: pipeline %s has a `collect:`, and this process was started without an agent since no pipeline had one: start it again", p.Pos, p.Name)
		}
	}
	if r.agent == nil {
		return nil
	}
	if len(collecting(pipes)) == 0 {
		return errors.New("no pipeline has a `collect:` any more: start this process again to run the sinks alone")
	}
	return r.agent.CheckReload(pipes)
}

// hold has retention wait for groups.
func (r *runner) hold(groups map[string][]string) {
	if r.broker != nil {
		r.broker.SetHoldFor(groups)
	}
}

// union has the groups of both, by topic.
func union(a, b map[string][]string) map[string][]string {
	all := map[string][]string{}
	for _, groups := range []map[string][]string{a, b} {
		for topic, names := range groups {
			for _, name := range names {
				if !slices.Contains(all[topic], name) {
					all[topic] = append(all[topic], name)
				}
			}
		}
	}
	return all
}
