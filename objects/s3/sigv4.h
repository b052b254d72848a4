// AWS Signature Version 4 in a header, in the variant of S3, which encodes the path once. A pure function;
// thread-safe. AWS's documentation has the format: "Authenticating Requests (AWS Signature Version 4)".
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

// Returns the headers to add to a request that has `headers`: x-amz-date, x-amz-content-sha256,
// x-amz-security-token (for a role's keys) and authorization. The signature covers these, `headers` and the
// host, but no other header that is sent.
HttpHeaders SignV4(std::string_view method, const Url& url, const HttpHeaders& headers, std::string_view body,
                   const Credentials& credentials, const SigningScope& scope);

}  // namespace tensorcast::objects
