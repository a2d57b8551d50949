package api

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

// UnregisterBroker, version 0. A broker's registration lives and ends with the
// broker, so there is never one to remove.
func (a *API) unregisterBroker(_ *server.Request, req *kmsg.UnregisterBrokerRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.UnregisterBrokerResponse)
	resp.ErrorCode = kerr.BrokerIDNotRegistered.Code
	resp.ErrorMessage = nullable(fmt.Sprintf("broker %d is not registered", req.BrokerID))
	if _, alive := a.Image().Broker(req.BrokerID); alive {
		resp.ErrorCode = kerr.InvalidRequest.Code
		resp.ErrorMessage = nullable(fmt.Sprintf("broker %d is running: its registration ends when it stops", req.BrokerID))
	}
	return resp
}
