package peer

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
)

// Forward passes a client's request, with its header, on to the controller
// within an Envelope, and returns the answer with its header. host is the
// client's address. The error is cluster.ErrNotController if the broker is not
// the controller.
func (c *Client) Forward(ctx context.Context, to cluster.Broker, request, host []byte) (response []byte, err error) {
	req := kmsg.NewPtrEnvelopeRequest()
	req.RequestData, req.ClientHostAddress = request, host
	err = c.request(ctx, to, req, func(resp kmsg.Response) error {
		answer, ok := resp.(*kmsg.EnvelopeResponse)
		switch {
		case !ok:
			return fmt.Errorf("%w: %T", errMalformed, resp)
		case answer.ErrorCode == kerr.NotController.Code:
			return cluster.ErrNotController
		case answer.ErrorCode != 0:
			return kerr.ErrorForCode(answer.ErrorCode)
		}
		response = slices.Clone(answer.ResponseData) // of the connection's buffer
		return nil
	})
	return response, err
}
