// Package install installs Manx on fresh machines as the documents show: by hand, and by the Ansible role.
package install
