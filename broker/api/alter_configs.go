package api

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// IncrementalAlterConfigs (KIP-339), versions 0 and 1, and AlterConfigs, which
// replaces all settings of a topic or broker, versions 0 to 2. Version 1 of the
// one and 2 of the other are flexible; nothing else differs.

// alterConfigsTimeout bounds how long a change waits for the cluster store; the
// requests have no timeout of their own.
const alterConfigsTimeout = 30 * time.Second

func (a *API) incrementalAlterConfigs(_ *server.Request, req *kmsg.IncrementalAlterConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.IncrementalAlterConfigsResponse)
	var asked []alteration
	for _, r := range req.Resources {
		one := alteration{kind: r.ResourceType, name: r.ResourceName}
		for _, c := range r.Configs {
			one.changes = append(one.changes, cluster.ConfigChange{Name: c.Name, Op: cluster.ConfigOp(c.Op), Value: c.Value})
		}
		asked = append(asked, one)
	}
	for i, err := range a.alterConfigs(asked, false, req.ValidateOnly) {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = asked[i].kind, asked[i].name
		out.ErrorCode, out.ErrorMessage = topicError(err)
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

func (a *API) replaceConfigs(_ *server.Request, req *kmsg.AlterConfigsRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.AlterConfigsResponse)
	var asked []alteration
	for _, r := range req.Resources {
		one := alteration{kind: r.ResourceType, name: r.ResourceName}
		for _, c := range r.Configs {
			one.changes = append(one.changes, cluster.ConfigChange{Name: c.Name, Op: cluster.OpSetConfig, Value: c.Value})
		}
		asked = append(asked, one)
	}
	for i, err := range a.alterConfigs(asked, true, req.ValidateOnly) {
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = asked[i].kind, asked[i].name
		out.ErrorCode, out.ErrorMessage = topicError(err)
		resp.Resources = append(resp.Resources, out)
	}
	return resp
}

// alteration is what a request asks of one resource.
type alteration struct {
	kind    kmsg.ConfigResourceType
	name    string
	changes []cluster.ConfigChange
}

// alterConfigs answers for each resource in the order asked.
func (a *API) alterConfigs(asked []alteration, replace, validateOnly bool) []error {
	errs := make([]error, len(asked))
	var accepted []cluster.ConfigAlteration
	var at []int // where in asked
	for i, one := range asked {
		c := cluster.ConfigAlteration{Name: one.name, Replace: replace, Changes: one.changes}
		if c.Kind, errs[i] = a.alterable(one); errs[i] == nil {
			accepted, at = append(accepted, c), append(at, i)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), alterConfigsTimeout)
	defer cancel()
	for i, err := range a.Controller.AlterConfigs(ctx, accepted, validateOnly) {
		errs[at[i]] = err
	}
	return errs
}

func (a *API) alterable(asked alteration) (cluster.ConfigKind, error) {
	switch asked.kind {
	case kmsg.ConfigResourceTypeTopic:
		return cluster.KindTopic, nil
	case kmsg.ConfigResourceTypeBroker:
		if asked.name == cluster.AllBrokers || a.isBroker(asked.name) {
			return cluster.KindBroker, nil
		}
		return 0, fmt.Errorf("%w: this is broker %d, and there is no %q", cluster.ErrInvalidRequest, a.cfg.BrokerID, asked.name)
	}
	return 0, fmt.Errorf("%w: settings of a %v are not supported", cluster.ErrInvalidRequest, asked.kind)
}

// isBroker tells whether a name is the number of a broker of the cluster.
func (a *API) isBroker(name string) bool {
	id, err := strconv.ParseInt(name, 10, 32)
	if err != nil || strconv.FormatInt(id, 10) != name {
		return false
	}
	_, live := a.Image().Broker(int32(id))
	return live || int32(id) == a.cfg.BrokerID
}
