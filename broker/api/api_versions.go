package api

// ApiVersions, versions 0 to 5.
//
//	1  throttle time
//	3  flexible; the client's software name and version (KIP-511); features (KIP-584)
//	5  the cluster and node that the client believes to talk to (KIP-1242)
//
// The response header is version 0 whatever the request's version: a client
// that does not know us yet could not parse another.

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/sluice-io/sluice/broker/server"
)

func apiVersions(a *API, r *server.Request, req *kmsg.ApiVersionsRequest) {
	if code := a.checkApiVersions(req); code != 0 {
		resp := kmsg.NewPtrApiVersionsResponse()
		resp.ErrorCode = code
		replyApiVersions(r, resp, req.Version)
		return
	}
	if req.Version >= 3 {
		r.Conn.SetClientSoftware(req.ClientSoftwareName, req.ClientSoftwareVersion)
	}
	replyApiVersions(r, a.supportedVersions(), req.Version)
}

// apiVersionsFallback answers a version above ours in the form of version 0,
// with the list, so that the client asks again in a version that we have.
func apiVersionsFallback(a *API, r *server.Request) {
	resp := a.supportedVersions()
	resp.ErrorCode = kerr.UnsupportedVersion.Code
	replyApiVersions(r, resp, 0)
}

// replyApiVersions differs from reply in the header.
func replyApiVersions(r *server.Request, resp *kmsg.ApiVersionsResponse, version int16) {
	resp.SetVersion(version)
	r.Respond(server.Response{Parts: []server.Part{{Bytes: resp.AppendTo(nil)}}})
}

func (a *API) checkApiVersions(req *kmsg.ApiVersionsRequest) int16 {
	if req.Version >= 3 && !(validSoftware(req.ClientSoftwareName) && validSoftware(req.ClientSoftwareVersion)) {
		return kerr.InvalidRequest.Code
	}
	if req.Version < 5 || req.ClusterID == nil && req.NodeID == -1 {
		return 0
	}
	switch {
	case req.ClusterID == nil || req.NodeID == -1:
		return kerr.InvalidRequest.Code
	case *req.ClusterID != clusterID(a) || req.NodeID != a.cfg.BrokerID:
		return kerr.RebootstrapRequired.Code
	}
	return 0
}

func clusterID(a *API) string {
	if im := a.Image(); im != nil {
		return im.ClusterID
	}
	return ""
}

func (a *API) supportedVersions() *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	for key := range a.routes {
		rt := a.routeOf(int16(key))
		if rt == nil || rt.internal {
			continue
		}
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = rt.key, rt.min, rt.max
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	return resp
}

// validSoftware checks a name or version by KIP-511's rule: letters, digits,
// dots and dashes, with a letter or digit at both ends.
func validSoftware(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		inner := (c == '.' || c == '-') && i > 0 && i < len(s)-1
		if !letter && !inner {
			return false
		}
	}
	return s != ""
}
