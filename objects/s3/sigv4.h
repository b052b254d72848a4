// AWS Signature Version 4 in a header, in S3's variant, which encodes the path only once. Source: Amazon S3
// API Reference, "Authenticating Requests (AWS Signature Version 4)". A pure function; thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "objects/credentials/credentials.h"
#include "objects/http/http_client.h"
#include "objects/http/url.h"

namespace tensorcast::objects {

struct SigningScope {
  std::string region;
  std::string service = "s3";
  absl::Time time;
};

// Returns the headers to add to a request with the headers `headers`: x-amz-date, x-amz-content-sha256,
// x-amz-security-token (only with a role's keys) and authorization. The signature covers the first three,
// `headers` and the host, and no other header of the request.
HttpHeaders SignV4(std::string_view method, const Url& url, const HttpHeaders& headers, std::string_view body,
                   const Credentials& credentials, const SigningScope& scope);

}  // namespace tensorcast::objects
