package testenv

import (
	"bytes"
	"net"
	"sync"
	"testing"
)

// Proxy is a way to a server that can be cut, and stalled: then connections
// stay, and nothing comes through. Its methods may be called from any goroutine.
type Proxy struct {
	listener net.Listener
	server   string

	mu    sync.Mutex // guards what follows
	cut   bool
	stall chan struct{} // closed when data flows
	mute  chan struct{} // closed when answers flow
	after string        // what a client sends before it is muted; empty: nothing
	conns map[net.Conn]bool
}

// StartProxy starts a proxy to the server at host:port; it ends with t.
func StartProxy(t testing.TB, server string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{listener: l, server: server, stall: make(chan struct{}), mute: make(chan struct{}), conns: map[net.Conn]bool{}}
	close(p.stall)
	close(p.mute)
	var accepting sync.WaitGroup
	accepting.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		accepting.Wait()
		p.Cut()
		p.Flow()
	})
	return p
}

// Addr is what the server's clients are told, host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		a, err := p.listener.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.server)
		p.mu.Lock()
		if err != nil || p.cut {
			_ = a.Close()
			if err == nil {
				_ = b.Close()
			}
		} else {
			p.conns[a], p.conns[b] = true, true
			go p.copy(a, b, true)
			go p.copy(b, a, false)
		}
		p.mu.Unlock()
	}
}

func (p *Proxy) copy(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	buf := make([]byte, 64<<10)
	heard := false // the text after which answers stop
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if !answers {
			heard = p.hear(buf[:n], heard)
		}
		p.mu.Lock()
		flows, speaks := p.stall, p.mute
		p.mu.Unlock()
		<-flows
		if answers {
			<-speaks
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// Cut ends all connections and takes no new ones.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

// Stall stops all data.
func (p *Proxy) Stall() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stall = make(chan struct{})
}

// Mute stops what comes from the server; what is sent to it goes through.
func (p *Proxy) Mute() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = make(chan struct{})
}

// MuteAfter is Mute as soon as a client has sent a text and then, after an answer to it, more.
func (p *Proxy) MuteAfter(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.after = text
}

// hear looks at what a client sends for the text after which it is muted; heard says that it was there before.
func (p *Proxy) hear(sent []byte, heard bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.after == "":
		return false
	case heard:
		p.after, p.mute = "", make(chan struct{})
		return false
	default:
		return bytes.Contains(sent, []byte(p.after))
	}
}

// Flow lets connections and data through again.
func (p *Proxy) Flow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut, p.after = false, ""
	for _, held := range []chan struct{}{p.stall, p.mute} {
		select {
		case <-held:
		default:
			close(held)
		}
	}
}
