package server
type Server struct { frames pool }
type Conn struct { srv *Server; done chan struct{} }
type frame struct{}
type pool struct{}
func (pool) put(*frame) {}
func (*Conn) fail(error) {}
func (*Conn) onGone(*Request, func()) {}
func (*Conn) answer(*Request, Response, bool, bool) {}
