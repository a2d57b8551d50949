package broker

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// plaintext is the one security protocol of a listener.
const plaintext = "PLAINTEXT://"

// parseListener takes host:port, with or without PLAINTEXT:// before it.
func parseListener(property, s string) (hostPort string, err error) {
	hostPort = strings.TrimPrefix(s, plaintext)
	if i := strings.Index(hostPort, "://"); i >= 0 {
		return "", fmt.Errorf("%s %q: only PLAINTEXT listeners are supported, not %s", property, s, hostPort[:i])
	}
	_, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return "", fmt.Errorf("%s %q must be host:port, such as 127.0.0.1:9092", property, s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return "", fmt.Errorf("%s %q: the port must be a number from 0 to 65535", property, s)
	}
	return hostPort, nil
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
