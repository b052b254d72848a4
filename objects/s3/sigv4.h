// AWS Signature Version 4 in a header, as S3 wants it: the path is encoded once. A pure function of what it
// is given; the format is in AWS's documentation, "Authenticating Requests (AWS Signature Version 4)".
// Thread-safe.
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

// The headers that make the request of `headers` a signed one: x-amz-date, x-amz-content-sha256,
// x-amz-security-token with a role's keys, and authorization. Each of `headers` is signed, and the host;
// headers that are sent besides are not.
HttpHeaders SignV4(std::string_view method, const Url& url, const HttpHeaders& headers, std::string_view body,
                   const Credentials& credentials, const SigningScope& scope);

}  // namespace tensorcast::objects
