package handlers

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock-dev/penstock/internal/config"
)

// allowList is a parsed http.allow. A destination passes two checks: its host,
// as the declaration names it, must be listed (permits); and the address that
// a connection is about to be made to, after the name was resolved, must not
// be an internal one, save those that the operator listed by address
// (refusal). The second holds whatever a name server answers.
type allowList struct {
	hosts   []hostRule
	nets    []netip.Prefix
	private bool
}

// hostRule is an entry that is not a CIDR.
type hostRule struct {
	addr netip.Addr // of a literal address, else invalid
	name string     // of a host name, without the "*" of a wildcard: ".example.com"
	port string     // "": any
}

// parseAllow parses the allow-list. The error joins those of all entries:
// "http.allow[2]: …".
func parseAllow(c config.HTTPClient) (allowList, error) {
	a := allowList{private: c.AllowPrivate}
	var errs []error
	for i, entry := range c.Allow {
		if err := a.add(entry); err != nil {
			errs = append(errs, fmt.Errorf("http.allow[%d]: %q: %w", i, entry, err))
		}
	}
	return a, errors.Join(errs...)
}

// add parses one entry: a CIDR, a host name or *.domain, or an IP address, the
// latter two with or without a port.
func (a *allowList) add(entry string) error {
	entry = strings.TrimSpace(entry)
	if strings.Contains(entry, "/") {
		p, err := parseCIDR(entry)
		if err != nil {
			return err
		}
		a.nets = append(a.nets, p)
		return nil
	}
	host, port := entry, ""
	if addr, err := netip.ParseAddr(strings.Trim(entry, "[]")); err == nil {
		host = addr.String()
	} else if strings.Contains(entry, ":") {
		if host, port, err = net.SplitHostPort(entry); err != nil {
			return errors.New("is not host, host:port, *.domain or a CIDR")
		}
		if port, err = parsePort(port); err != nil {
			return err
		}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		a.hosts = append(a.hosts, hostRule{addr: plain(addr), port: port})
		return nil
	}
	name, wildcard := strings.CutPrefix(hostName(host), "*.")
	if err := checkName(name); err != nil {
		return err
	}
	if wildcard {
		name = "." + name
	}
	a.hosts = append(a.hosts, hostRule{name: name, port: port})
	return nil
}

// parseCIDR parses a prefix; one of IPv4-mapped IPv6 addresses becomes that of
// the IPv4 addresses, the form in which addresses are compared.
func parseCIDR(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, errors.New("is not a CIDR such as 10.0.0.0/8 (and a host is listed without scheme and path)")
	}
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return p, errors.New("is wider than the IPv4-mapped addresses; list the IPv4 and IPv6 parts apart")
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// permits returns an error unless the list has an entry for the host and port
// of a URL. A name is listed by name only: a CIDR is for hosts that are literal
// addresses, and for what an allowed name may resolve to.
func (a *allowList) permits(host, port string) error {
	addr, err := netip.ParseAddr(host)
	literal := err == nil
	for _, r := range a.hosts {
		if r.port != "" && r.port != port {
			continue
		}
		switch {
		case literal && r.addr.IsValid() && r.addr == plain(addr):
			return nil
		case !literal && strings.HasPrefix(r.name, ".") && len(host) > len(r.name) && strings.HasSuffix(host, r.name):
			return nil
		case !literal && r.name != "" && r.name == host:
			return nil
		}
	}
	if literal && a.listed(addr) {
		return nil
	}
	return fmt.Errorf("host %s is not allowed by http.allow", net.JoinHostPort(host, port))
}

// listed reports whether an allowed CIDR contains addr, or the IPv4 address
// that addr stands for.
func (a *allowList) listed(addr netip.Addr) bool {
	addr = plain(addr)
	v4, embeds := embedded(addr)
	for _, p := range a.nets {
		if p.Contains(addr) || embeds && p.Contains(v4) {
			return true
		}
	}
	return false
}

// refusal returns why no connection may be made to addr, an address that an
// allowed host name resolved to, or "" if it may.
func (a *allowList) refusal(addr netip.Addr) string {
	if a.private || a.listed(addr) {
		return ""
	}
	return internalRange(addr)
}

// special lists the blocks that are not destinations in the public Internet
// and that netip.Addr has no method for, or that reach a provider's metadata
// service.
var special = []struct {
	prefix netip.Prefix
	name   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("100.64.0.0/10"), "shared (carrier-grade NAT)"},
	{netip.MustParsePrefix("168.63.129.16/32"), "metadata service"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},
	{netip.MustParsePrefix("::/96"), "reserved"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "local NAT64"},
	{netip.MustParsePrefix("100::/64"), "discard"},
	{netip.MustParsePrefix("2001::/23"), "reserved"}, // Teredo among them
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
	{netip.MustParsePrefix("3fff::/20"), "documentation"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
}

// internalRange names the range that makes addr no public destination, or
// returns "".
func internalRange(addr netip.Addr) string {
	addr = plain(addr)
	if v4, ok := embedded(addr); ok {
		addr = v4
	}
	switch {
	case !addr.IsValid():
		return "invalid"
	case addr.IsUnspecified():
		return "unspecified"
	case addr.IsLoopback():
		return "loopback"
	case addr.IsPrivate():
		return "private"
	case addr.IsLinkLocalUnicast():
		return "link-local"
	case addr.IsMulticast():
		return "multicast"
	}
	for _, s := range special {
		if s.prefix.Contains(addr) {
			return s.name
		}
	}
	return ""
}

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	sixTo4 = netip.MustParsePrefix("2002::/16")
)

// embedded returns the IPv4 address that packets to addr are translated or
// tunnelled to: by NAT64 (RFC 6052) or 6to4 (RFC 3056).
func embedded(addr netip.Addr) (netip.Addr, bool) {
	b := addr.As16()
	switch {
	case nat64.Contains(addr):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixTo4.Contains(addr):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return netip.Addr{}, false
}

// plain returns addr without zone, and as an IPv4 address if it is mapped to
// IPv6.
func plain(addr netip.Addr) netip.Addr { return addr.WithZone("").Unmap() }

// hostName returns the form in which host names are compared.
func hostName(s string) string { return strings.ToLower(strings.TrimSuffix(s, ".")) }

// checkName returns an error unless s is a host name in lower-case ASCII, at
// most 253 bytes long.
func checkName(s string) error {
	if s == "" {
		return errors.New("host is missing")
	}
	if len(s) > 253 {
		return errors.New("host name is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 {
			return errors.New("host name has a part that is not 1 to 63 bytes long")
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return errors.New("host name has other characters than letters, digits, - and _ (write IDNs as xn--…)")
			}
		}
	}
	return nil
}

// parsePort returns the decimal form of a port from 1 to 65535.
func parsePort(s string) (string, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not between 1 and 65535", s)
	}
	return strconv.FormatUint(n, 10), nil
}
