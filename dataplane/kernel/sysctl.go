package kernel

import (
	"fmt"
	"os"
	"strings"
)

const sysctlRoot = "/proc/sys/"

// Sysctl implements Sysctls.
func (c *Conn) Sysctl(name string) (value string, err error) {
	err = c.inside(func() error {
		data, err := os.ReadFile(sysctlRoot + name)
		value = strings.TrimSuffix(string(data), "\n")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return value, nil
}

// SetSysctl implements Sysctls.
func (c *Conn) SetSysctl(name, value string) error {
	err := c.inside(func() error { return os.WriteFile(sysctlRoot+name, []byte(value), 0) })
	if err != nil {
		return fmt.Errorf("set sysctl %s to %s: %w", name, value, err)
	}
	return nil
}
