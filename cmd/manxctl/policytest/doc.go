// Package policytest reads files of expected verdicts and compares them with those of policy.
package policytest
