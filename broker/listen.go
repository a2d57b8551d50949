package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/sluice-io/sluice/broker/cluster"
)

// plaintext is the one security protocol of a listener, and the name of a
// listener that has no other.
const plaintext = "PLAINTEXT"

// listener is a listener or an advertised address.
type listener struct{ name, hostPort string }

// parseListener takes host:port or NAME://host:port. protocols has the names
// that are known.
func parseListener(property, s string, protocols map[string]string) (listener, error) {
	l := listener{plaintext, s}
	if name, hostPort, named := strings.Cut(s, "://"); named {
		l = listener{strings.ToUpper(name), hostPort}
	}
	switch protocol := protocols[l.name]; protocol {
	case plaintext:
	case "":
		return l, fmt.Errorf("%s %q: nothing says which protocol %s is; add %s:%s to listener.security.protocol.map", property, s, l.name, l.name, plaintext)
	default:
		return l, fmt.Errorf("%s %q: only PLAINTEXT listeners are supported, not %s", property, s, protocol)
	}
	_, port, err := net.SplitHostPort(l.hostPort)
	if err != nil {
		return l, fmt.Errorf("%s %q must be host:port, such as 127.0.0.1:9092", property, s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return l, fmt.Errorf("%s %q: the port must be a number from 0 to 65535", property, s)
	}
	return l, nil
}

// listenerProtocols reads listener.security.protocol.map, over Kafka's default.
func listenerProtocols(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, protocol := range []string{plaintext, "SSL", "SASL_PLAINTEXT", "SASL_SSL"} {
		out[protocol] = protocol
	}
	for _, pair := range pairs {
		name, protocol, ok := strings.Cut(pair, ":")
		if !ok || name == "" || protocol == "" {
			return nil, fmt.Errorf("listener.security.protocol.map %q must be NAME:PROTOCOL", pair)
		}
		out[strings.ToUpper(strings.TrimSpace(name))] = strings.ToUpper(strings.TrimSpace(protocol))
	}
	return out, nil
}

// parseListeners reads the listeners and what is advertised of each.
func (c *Config) parseListeners() (listeners []listener, advertised map[string]string, err error) {
	protocols, err := listenerProtocols(c.ListenerProtocols)
	if err != nil {
		return nil, nil, err
	}
	names := map[string]bool{}
	for _, s := range c.Listen {
		l, err := parseListener("listeners", s, protocols)
		if err != nil {
			return nil, nil, err
		}
		listeners = append(listeners, l)
		names[l.name] = true
	}
	advertised = map[string]string{}
	for _, s := range c.Advertise {
		if !strings.Contains(s, "://") && len(names) == 1 {
			s = listeners[0].name + "://" + s
		}
		l, err := parseListener("advertised.listeners", s, protocols)
		switch {
		case err != nil:
			return nil, nil, err
		case !names[l.name]:
			return nil, nil, fmt.Errorf("advertised.listeners %q: there is no listener %s among listeners", s, l.name)
		case advertised[l.name] != "":
			return nil, nil, fmt.Errorf("advertised.listeners has two addresses for listener %s", l.name)
		}
		advertised[l.name] = l.hostPort
	}
	return listeners, advertised, nil
}

// endpoints are the addresses that clients are told, by listener.
func endpoints(listeners []listener, configured map[string]string, bound []net.Addr) ([]cluster.Endpoint, error) {
	var out []cluster.Endpoint
	for i, l := range listeners {
		host, port, err := advertised(configured[l.name], bound[i])
		if err != nil {
			return nil, err
		}
		// Of several listeners of one name, the first tells its address.
		if !slices.ContainsFunc(out, func(e cluster.Endpoint) bool { return e.Listener == l.name }) {
			out = append(out, cluster.Endpoint{Listener: l.name, Host: host, Port: port})
		}
	}
	return out, nil
}

// explainListen names the mend for what usually keeps a port from being bound.
func explainListen(err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; stop the program that uses the port, or listen elsewhere with --listen (listeners)", err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return fmt.Errorf("%w; the address is not one of this machine's: listen elsewhere with --listen (listeners), and tell clients the other address with advertised.listeners", err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("%w; this user may not use the port: take one above 1023 with --listen (listeners)", err)
	}
	return err
}

// advertised is the address that clients are told.
func advertised(configured string, bound net.Addr) (host string, port int32, err error) {
	address := bound.String()
	if configured != "" {
		address = configured
	}
	host, portText, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fmt.Errorf("advertised.listeners %q must be host:port", address)
	}
	n, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		return "", 0, fmt.Errorf("advertised.listeners %q: the port is no number", address)
	}
	if n == 0 {
		n = int64(bound.(*net.TCPAddr).Port)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		// Nobody can connect to "all addresses".
		if host, err = os.Hostname(); err != nil {
			return "", 0, fmt.Errorf("find this machine's name, which clients are told: %w; set advertised.listeners", err)
		}
	}
	return host, int32(n), nil
}
