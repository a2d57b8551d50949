package api

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/cluster"
	"github.com/sluice-io/sluice/broker/server"
)

// Requests that only the controller can decide are passed on to it by whichever
// broker they came to, as they came, within an Envelope (KIP-590).

const (
	// forwardTimeout bounds how long a request is passed on for while there is no
	// controller, or it changes; one that says how long its client waits, no longer than
	// that.
	forwardTimeout = 30 * time.Second
	// forwardRetry is the pause before the next try.
	forwardRetry = 50 * time.Millisecond
)

// Forwarder passes a request, with its header, on to another broker and returns
// the answer, with its header. host is the client's address.
type Forwarder func(ctx context.Context, to cluster.Broker, request, host []byte) (response []byte, err error)

// errNotForwarded says that there was no controller to be found in time.
var errNotForwarded = errors.New("no controller answers")

// elsewhere tells whether the controller is, or is taken to be, another broker.
func (a *API) elsewhere() bool {
	return a.Forward != nil && a.controllerID() != a.cfg.BrokerID
}

// forward passes r on to the controller and its answer back. If none can be found in
// time, this broker answers that it is not the controller either, and why there is
// none.
func (a *API) forward(r *server.Request) {
	request := requestHeader(r, a.Flexible(r.Key, r.Version))
	request = append(request, r.Body...)
	ctx, cancel := context.WithTimeout(context.Background(), forwardWait(r))
	defer cancel()
	body, local, err := a.sendToController(ctx, request, hostBytes(r.Conn.RemoteAddr()))
	switch {
	case local || err != nil:
		a.handle(a.routeOf(r.Key), r)
	default:
		flexible := a.flexibleResponse(r)
		if body, err = stripHeader(body, flexible); err != nil {
			r.Fail(fmt.Errorf("%s: the controller's answer: %w", Name(r.Key), err))
			return
		}
		r.Respond(server.Response{Parts: []server.Part{{Bytes: body}}, Flexible: flexible})
	}
}

// forwardWait is how long a controller is looked for.
func forwardWait(r *server.Request) time.Duration {
	req := kmsg.RequestForKey(r.Key)
	req.SetVersion(r.Version)
	waits, ok := req.(kmsg.TimeoutRequest)
	if !ok || req.ReadFrom(r.Body) != nil {
		return forwardTimeout
	}
	return min(forwardTimeout, max(time.Duration(waits.Timeout())*time.Millisecond, forwardRetry))
}

// sendToController sends a request to the controller until one answers. local
// says that it is this broker now.
func (a *API) sendToController(ctx context.Context, request, host []byte) (response []byte, local bool, err error) {
	err = errNotForwarded
	for {
		if !a.elsewhere() {
			return nil, true, nil
		}
		if to, ok := a.Image().Broker(a.controllerID()); ok && to.ID != a.cfg.BrokerID {
			var sendErr error
			if response, sendErr = a.Forward(ctx, to, request, host); sendErr == nil {
				return response, false, nil
			}
			err = fmt.Errorf("%w: %w", errNotForwarded, sendErr)
		}
		select {
		case <-ctx.Done():
			return nil, false, err
		case <-time.After(forwardRetry):
		}
	}
}

// controllerID is the broker that is the controller, -1 if none is known.
func (a *API) controllerID() int32 {
	if a.ControllerID != nil {
		return a.ControllerID()
	}
	if im := a.Image(); im != nil {
		return im.ControllerID
	}
	return -1
}

// askController has the controller answer a request of this broker's own.
func (a *API) askController(ctx context.Context, req kmsg.Request) (kmsg.Response, error) {
	request := kmsg.NewRequestFormatter(kmsg.FormatterClientID("broker-"+a.brokerName())).AppendRequest(nil, req, 0)
	body, local, err := a.sendToController(ctx, request[4:], nil) // without the frame's size
	switch {
	case local:
		return nil, cluster.ErrNotController // it is this broker since: ask again
	case err != nil:
		return nil, err
	}
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	if body, err = stripHeader(body, resp.IsFlexible()); err != nil {
		return nil, err
	}
	if err := resp.ReadFrom(body); err != nil {
		return nil, fmt.Errorf("%w: the controller's answer to %s", errMalformed, Name(req.Key()))
	}
	return resp, nil
}

// requestHeader writes r's header as it came, but for tagged fields.
func requestHeader(r *server.Request, flexible bool) []byte {
	b := make([]byte, 0, 16+len(r.ClientID)+len(r.Body))
	b = binary.BigEndian.AppendUint16(b, uint16(r.Key))
	b = binary.BigEndian.AppendUint16(b, uint16(r.Version))
	b = binary.BigEndian.AppendUint32(b, uint32(r.CorrelationID))
	b = binary.BigEndian.AppendUint16(b, uint16(len(r.ClientID)))
	b = append(b, r.ClientID...)
	if flexible {
		b = append(b, 0)
	}
	return b
}

// flexibleResponse tells whether the header of r's answer has tagged fields.
func (a *API) flexibleResponse(r *server.Request) bool {
	resp := kmsg.ResponseForKey(r.Key)
	resp.SetVersion(r.Version)
	return resp.IsFlexible()
}

// stripHeader takes the header off an answer.
func stripHeader(b []byte, flexible bool) ([]byte, error) {
	d := reader{b: b, flexible: flexible}
	d.int32() // correlation id
	d.tags()
	return d.b, d.err()
}

// hostBytes is a client's address as Kafka has it in an Envelope.
func hostBytes(remote string) []byte {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return nil
	}
	ip := net.ParseIP(host)
	if v4 := ip.To4(); v4 != nil {
		return v4
	}
	return ip
}

// Envelope, version 0: a request that another broker passes on.
func envelope(a *API, r *server.Request, req *kmsg.EnvelopeRequest) {
	resp := req.ResponseKind().(*kmsg.EnvelopeResponse)
	inner, err := a.unwrap(r, req.RequestData, func(correlation int32, answer server.Response) {
		resp.ResponseData = joinAnswer(correlation, answer)
		reply(r, resp)
	})
	switch {
	case err != nil:
		r.Fail(err)
	case a.elsewhere():
		resp.ErrorCode = kerr.NotController.Code
		reply(r, resp)
	default:
		go a.handle(a.routeOf(inner.Key), inner)
	}
}

// unwrap reads the request within an envelope.
func (a *API) unwrap(r *server.Request, data []byte, answer func(int32, server.Response)) (*server.Request, error) {
	d := reader{b: data}
	key, version, correlation := d.int16(), d.int16(), d.int32()
	client, _ := d.str()
	if d.bad {
		return nil, fmt.Errorf("%w: header of the request within an envelope", errMalformed)
	}
	rt, err := a.route(key, version)
	switch {
	case err != nil:
		return nil, err
	case !rt.controller || version > rt.max:
		return nil, fmt.Errorf("%w: %s within an envelope", errUnsupported, Name(key))
	}
	d.flexible = a.Flexible(key, version)
	d.tags()
	if err := d.err(); err != nil {
		return nil, err
	}
	return r.Inner(key, version, client, d.b, func(resp server.Response) { answer(correlation, resp) }), nil
}

// joinAnswer is an answer with its header in one piece.
func joinAnswer(correlation int32, answer server.Response) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(correlation))
	if answer.Flexible {
		b = append(b, 0)
	}
	for _, p := range answer.Parts {
		b = append(b, p.Bytes...)
	}
	return b
}
