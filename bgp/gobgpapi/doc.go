// Package gobgpapi serves GoBGP's v3 API (apipb.GobgpApi) over Manx's speaker, for the stock gobgp command of the v3
// releases. It answers all reads. The only change that it permits is a soft reset.
package gobgpapi
