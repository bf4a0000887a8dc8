package felixconfig

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/projectcalico/api/pkg/lib/numorstring"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/manxnet/manx/datastore/model"
	"github.com/manxnet/manx/datastore/validation"
)

// value returns the value of a field of FelixConfiguration for the text of its parameter, read as Felix does: "none" is
// the zero value. It is not valid for a type that is not read here, because nothing in Manx depends on it.
func (p Parameter) value(text string, field reflect.Type) (value reflect.Value, err error) {
	target := field
	if field.Kind() == reflect.Pointer {
		target = field.Elem()
	}
	into := reflect.New(target)
	if strings.EqualFold(text, "none") && p.Name == "InterfacePrefix" { // no interface would be a workload's
		return value, errors.New("want the beginning of names of interfaces")
	}
	if !strings.EqualFold(text, "none") || p.Name == "EndpointStatusPathPrefix" { // which has that value itself
		known, err := p.parse(text, into.Interface())
		if !known || err != nil {
			return value, err
		}
	}
	if value = into; field.Kind() != reflect.Pointer {
		value = into.Elem()
	}
	f := model.FelixConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	reflect.ValueOf(&f.Spec).Elem().FieldByIndex(p.index).Set(value)
	for _, broken := range validation.Validate(model.ResourceKey(model.KindFelixConfiguration, f.Name), &f) {
		return value, errors.New(broken.Rule)
	}
	return value, nil
}

// parse reads a text into the target of a pointer. It reports whether it knows the type.
func (p Parameter) parse(text string, into any) (known bool, err error) {
	kind, options, _ := strings.Cut(strings.TrimSuffix(p.kind, ")"), "(")
	switch into := into.(type) {
	case *bool:
		return true, parseBool(text, into)
	case *int:
		return true, parseInt(text, options, into)
	case *uint32:
		n, err := strconv.ParseUint(text, 0, 32)
		*into = uint32(n)
		return true, want(err, "a number of 32 bits")
	case *metav1.Duration:
		return true, parseDuration(kind, text, into)
	case *[]v3.ProtoPort:
		return true, parsePorts(text, into)
	case *numorstring.Port:
		*into, err = numorstring.PortFromString(text)
		if err == nil && into.PortName != "" {
			err = errors.New("is a name")
		}
		return true, want(err, "a port or a range of ports FIRST:LAST")
	case *[]string:
		return true, parseList(kind, text, into)
	}
	if v := reflect.ValueOf(into).Elem(); v.Kind() == reflect.String {
		word, err := parseText(kind, options, text)
		v.SetString(word)
		return true, err
	}
	return false, nil
}

// want replaces an error by the rule that a value breaks.
func want(err error, rule string) error {
	if err == nil {
		return nil
	}
	return errors.New("want " + rule)
}

func parseDuration(kind, text string, into *metav1.Duration) error {
	unit, units := time.Second, "seconds"
	if kind == "millis" {
		unit, units = time.Millisecond, "milliseconds"
	}
	n, err := strconv.ParseFloat(text, 64)
	into.Duration = time.Duration(n * float64(unit))
	return want(err, "a number of "+units)
}

func parseBool(text string, into *bool) error {
	switch strings.ToLower(text) {
	case "true", "1", "yes", "y", "t":
		*into = true
	case "false", "0", "no", "n", "f":
		*into = false
	default:
		return errors.New("want true or false")
	}
	return nil
}

// parseInt reads a number in decimal, or with 0x in front; limits are LOW:HIGH, empty for none.
func parseInt(text, limits string, into *int) error {
	n, err := strconv.ParseInt(text, 0, 64)
	*into = int(n)
	if low, high, ok := strings.Cut(limits, ":"); ok && err == nil {
		first, _ := strconv.ParseInt(low, 10, 64)
		last, _ := strconv.ParseInt(high, 10, 64)
		if n < first || n > last {
			return fmt.Errorf("want a number from %d to %d", first, last)
		}
	}
	return want(err, "a number")
}

// parsePorts reads ports PORT, PROTOCOL:PORT or PROTOCOL:NET:PORT, separated by commas; a net of IPv6 is in brackets.
func parsePorts(text string, into *[]v3.ProtoPort) error {
	ports := []v3.ProtoPort{}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		p := v3.ProtoPort{Protocol: "tcp"}
		if at := strings.LastIndex(word, ":"); at >= 0 {
			p.Protocol, p.Net, _ = strings.Cut(strings.ToLower(word[:at]), ":")
			p.Net = strings.Trim(p.Net, "[]")
			word = word[at+1:]
		}
		port, err := strconv.ParseUint(word, 10, 16)
		if err != nil || p.Protocol != "tcp" && p.Protocol != "udp" || !isNet(p.Net) {
			return errors.New("want ports PORT, tcp:PORT, udp:PORT or PROTOCOL:NET:PORT, separated by commas")
		}
		p.Port = uint16(port)
		ports = append(ports, p)
	}
	*into = ports
	return nil
}

// isNet reports whether a text is empty, an address or a prefix.
func isNet(text string) bool {
	if text == "" {
		return true
	}
	_, err := netip.ParsePrefix(text)
	if err != nil {
		_, err = netip.ParseAddr(text)
	}
	return err == nil
}

func parseList(kind, text string, into *[]string) error {
	list := []string{}
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		if kind == "cidrs" && !isNet(word) {
			return errors.New("want prefixes or addresses, separated by commas")
		}
		list = append(list, word)
	}
	*into = list
	return nil
}

// parseText checks a text, and returns one of a choice in the spelling of FelixConfiguration, which has no capitals
// but the first where Felix has capitals alone.
func parseText(kind, options, text string) (string, error) {
	switch kind {
	case "oneof":
		var words []string
		for word := range strings.SplitSeq(options, ",") {
			if len(word) > 1 && word == strings.ToUpper(word) && !strings.HasPrefix(word, "TC") {
				word = word[:1] + strings.ToLower(word[1:])
			}
			if strings.EqualFold(word, text) {
				return word, nil
			}
			words = append(words, word)
		}
		return text, errors.New("want " + strings.Join(words, ", "))
	case "ipv4", "ipv6":
		if a, err := netip.ParseAddr(text); err != nil || a.Unmap().Is4() != (kind == "ipv4") {
			return text, fmt.Errorf("want an address of %s", strings.Replace(kind, "ipv", "IPv", 1))
		}
	}
	return text, nil
}
