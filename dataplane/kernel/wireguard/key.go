package wireguard

import (
	"errors"
	"fmt"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Key is a public key of Curve25519 (RFC 7748); the zero value is none.
type Key [wgtypes.KeyLen]byte

// ParseKey reads a public key in base64, as Node objects have it. An empty text is no key.
func ParseKey(text string) (Key, error) {
	if text == "" {
		return Key{}, errors.New("no key")
	}
	k, err := wgtypes.ParseKey(text)
	if err != nil || k == (wgtypes.Key{}) || k.String() != text {
		return Key{}, fmt.Errorf("%.60q is no public key of WireGuard, which is 32 bytes in base64", text)
	}
	return Key(k), nil
}

// IsZero reports whether there is no key.
func (k Key) IsZero() bool { return k == Key{} }

// String writes the key in base64, empty if there is none.
func (k Key) String() string {
	if k.IsZero() {
		return ""
	}
	return wgtypes.Key(k).String()
}
