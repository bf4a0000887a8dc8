package node

import (
	"errors"
	"fmt"
	"strings"

	"github.com/projectcalico/api/pkg/lib/numorstring"

	"github.com/manxnet/manx/datastore/model"
)

// Check refuses settings that can never work, before any query of the host or the datastore. The error names the
// variable of each.
func (c *Config) Check() error {
	var errs []error
	if name := strings.TrimSpace(c.Name.Configured); name != "" {
		errs = append(errs, checkName(name))
	}
	for _, f := range bothFamilies {
		errs = append(errs, c.checkAddress(f))
	}
	_, err := c.asNumber()
	errs = append(errs, err)
	if c.NoDefaultPools {
		return errors.Join(append(errs, noPoolsWanted(c))...)
	}
	for _, f := range bothFamilies {
		if _, err := defaultPool(c, f, nil); err != nil {
			errs = append(errs, fmt.Errorf("default %s pool: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

// checkAddress ignores an unused method.
func (c *Config) checkAddress(f Family) error {
	setting, method, variable := c.ip(f)
	switch {
	case setting == noAddress, setting == "" && f == IPv6:
		return nil
	case setting == autodetect, setting == "":
		_, err := parseMethodOf(variable, method)
		return err
	}
	if _, err := parseAddress(setting, f); err != nil {
		return fmt.Errorf("%s: %w, autodetect or none", variable, err)
	}
	return nil
}

func parseMethodOf(variable, method string) (method, error) {
	m, err := parseMethod(method)
	if err != nil {
		return m, fmt.Errorf("%s_AUTODETECTION_METHOD: %w", variable, err)
	}
	return m, nil
}

// asNumber returns the configured AS number, nil for none.
func (c *Config) asNumber() (*numorstring.ASNumber, error) {
	if c.AS == "" {
		return nil, nil
	}
	as, err := numorstring.ASNumberFromString(c.AS)
	if err != nil || as == 0 {
		return nil, fmt.Errorf("AS = %q: want a number from 1 to 4294967295, or two of 16 bits as HIGH.LOW", c.AS)
	}
	return &as, nil
}

// ReplacesAS returns a sentence if the configured AS number is another one than a Node has, empty if not.
func (c *Config) ReplacesAS(n *model.Node) string {
	as, err := c.asNumber()
	if has := asOf(n); err == nil && as != nil && has != nil && *has != *as {
		return fmt.Sprintf("AS number %s of the Node does not last: AS=%s in the settings of this host replaces it at "+
			"each start; change AS there, or remove it", has, c.AS)
	}
	return ""
}
