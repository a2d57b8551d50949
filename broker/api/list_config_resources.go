package api

import (
	"strconv"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

// ListConfigResources (KIP-1142), versions 0 and 1: what DescribeConfigs can be
// asked about. Version 0 asks for client metrics alone, version 1 names kinds,
// none for all. There are no settings of client metrics, groups and loggers.
func (a *API) listConfigResources(_ *server.Request, req *kmsg.ListConfigResourcesRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ListConfigResourcesResponse)
	kinds := []kmsg.ConfigResourceType{kmsg.ConfigResourceTypeClientMetrics}
	if req.Version >= 1 {
		kinds = kinds[:0]
		for _, k := range req.ResourceTypes {
			kinds = append(kinds, kmsg.ConfigResourceType(k))
		}
		if len(kinds) == 0 {
			kinds = []kmsg.ConfigResourceType{kmsg.ConfigResourceTypeBroker, kmsg.ConfigResourceTypeTopic}
		}
	}
	for _, kind := range kinds {
		switch kind {
		case kmsg.ConfigResourceTypeTopic:
			for _, t := range a.Image().Topics() {
				resp.ConfigResources = append(resp.ConfigResources, configResource(t.Name, kind))
			}
		case kmsg.ConfigResourceTypeBroker:
			if im := a.Image(); im != nil {
				for _, b := range im.Brokers {
					resp.ConfigResources = append(resp.ConfigResources, configResource(strconv.Itoa(int(b.ID)), kind))
				}
			}
		case kmsg.ConfigResourceTypeBrokerLogger, kmsg.ConfigResourceTypeClientMetrics, kmsg.ConfigResourceTypeGroupConfig:
		default:
			resp.ErrorCode, resp.ConfigResources = kerr.UnsupportedVersion.Code, nil
			return resp
		}
	}
	return resp
}

func configResource(name string, kind kmsg.ConfigResourceType) kmsg.ListConfigResourcesResponseConfigResource {
	out := kmsg.NewListConfigResourcesResponseConfigResource()
	out.Name, out.Type = name, int8(kind)
	return out
}
