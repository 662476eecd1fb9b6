package handlers

import (
	"net/netip"
	"testing"

	"github.com/penstock-dev/penstock/internal/config"
)

func allow(t *testing.T, private bool, entries ...string) allowList {
	t.Helper()
	a, err := parseAllow(config.HTTPClient{Allow: entries, AllowPrivate: private})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestParseAllowRefuses(t *testing.T) {
	for _, entry := range []string{
		"", "*", "*.", "*.*.example.com", "a..b", "http://a", "a:0", "a:70000", "a:", "a:b:c", ":80", "é.example.com",
		"10.0.0.0/33", "10.0.0.1/x", "::ffff:10.0.0.0/90", "a b", "user@a",
	} {
		if _, err := parseAllow(config.HTTPClient{Allow: []string{entry}}); err == nil {
			t.Errorf("%q is accepted", entry)
		}
	}
}

func TestPermits(t *testing.T) {
	a := allow(t, false, "Example.com.", "api.example.com:8080", "*.svc.example.com", "10.1.0.0/16",
		"::ffff:10.2.0.0/112", "192.0.2.1", "192.0.2.2:81", "[2001:db8::1]:443", "::1", "*.p.example.com:0444")
	for _, tt := range []struct {
		host, port string
		want       bool
	}{
		{"example.com", "80", true},
		{"example.com", "9999", true},
		{"www.example.com", "80", false},
		{"badexample.com", "80", false},
		{"api.example.com", "8080", true},
		{"api.example.com", "80", false},
		{"a.svc.example.com", "80", true},
		{"a.b.svc.example.com", "80", true},
		{"svc.example.com", "80", false},
		{"a.p.example.com", "444", true},
		{"a.p.example.com", "443", false},
		{"10.1.2.3", "80", true},
		{"::ffff:10.1.2.3", "80", true},
		{"10.2.255.1", "80", true},
		{"10.3.0.1", "80", false},
		{"192.0.2.1", "1", true},
		{"192.0.2.2", "81", true},
		{"192.0.2.2", "80", false},
		{"2001:db8::1", "443", true},
		{"2001:db8::1", "80", false},
		{"::1", "80", true},
		{"127.0.0.1", "80", false},
		{"2130706433", "80", false},
	} {
		if err := a.permits(tt.host, tt.port); (err == nil) != tt.want {
			t.Errorf("permits(%s, %s): %v", tt.host, tt.port, err)
		}
	}
}

func TestRefusal(t *testing.T) {
	none := allow(t, false)
	for addr, want := range map[string]string{
		"127.0.0.1": "loopback", "127.255.0.1": "loopback", "::1": "loopback", "::ffff:127.0.0.1": "loopback",
		"10.0.0.1": "private", "172.16.0.1": "private", "192.168.1.1": "private", "fd00:ec2::254": "private",
		"169.254.169.254": "link-local", "fe80::1": "link-local", "fe80::1%eth0": "link-local",
		"::ffff:169.254.169.254": "link-local", "224.0.0.1": "multicast", "ff02::1": "multicast",
		"0.0.0.0": "unspecified", "::": "unspecified", "0.1.2.3": "unspecified",
		"100.64.0.1": "shared (carrier-grade NAT)", "100.100.100.200": "shared (carrier-grade NAT)",
		"168.63.129.16": "metadata service", "192.0.0.192": "reserved", "255.255.255.255": "reserved",
		"198.18.0.1": "benchmarking", "64:ff9b::7f00:1": "loopback", "64:ff9b::a9fe:a9fe": "link-local",
		"64:ff9b:1::7f00:1": "local NAT64", "2002:7f00:1::": "loopback", "2002:a00:1::1": "private",
		"2001:0:1::1": "reserved", "::7f00:1": "reserved", "fec0::1": "site-local",
		"8.8.8.8": "", "::ffff:8.8.8.8": "", "2606:4700::1": "", "64:ff9b::808:808": "", "172.32.0.1": "",
		"100.128.0.1": "", "2002:808:808::1": "",
	} {
		if got := none.refusal(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
	if got := none.refusal(netip.Addr{}); got == "" {
		t.Error("the zero address is not refused")
	}
	private := allow(t, true)
	if got := private.refusal(netip.MustParseAddr("127.0.0.1")); got != "" {
		t.Errorf("with allow_private loopback is %s", got)
	}
	cidr := allow(t, false, "10.1.0.0/16", "fd00::/8")
	for addr, allowed := range map[string]bool{
		"10.1.0.1": true, "::ffff:10.1.0.1": true, "64:ff9b::a01:1": true, "fd00::1": true,
		"10.2.0.1": false, "64:ff9b::a02:1": false, "127.0.0.1": false,
	} {
		if got := cidr.refusal(netip.MustParseAddr(addr)); (got == "") != allowed {
			t.Errorf("%s with CIDRs: %q", addr, got)
		}
	}
}
