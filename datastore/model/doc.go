// Package model has the objects of the Calico v3 data model: their types, kinds and keys.
package model
