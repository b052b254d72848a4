// Opens objects of every kind by URI ("s3://", "gs://", "https://", "http://", "hf://"), and files by path.
// One store serves all imports of a process and keeps its connections. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/source/object_reader.h"
#include "objects/credentials/credentials.h"
#include "objects/credentials/profile.h"
#include "objects/http/http_client.h"
#include "objects/http/read_rates.h"
#include "objects/http/secret.h"
#include "objects/origins/origins.h"
#include "objects/s3/s3_writer.h"

namespace tensorcast::objects {

struct OpenOptions {
  // AWS_*, HF_*, XDG_CACHE_HOME and HOME, with the meaning that AWS's and Hugging Face's tools give them. AWS
  // credentials are read again at each renewal, all other settings when the store is opened. AWS_CA_BUNDLE is
  // used for all kinds of URIs.
  Environment environment = ProcessEnvironment();
  // The places that may be read; each redirect is checked, too. Absent: no restriction.
  std::optional<Origins> origins;
  // A client's own credentials. Null: the environment's. For gs:// they are HMAC keys of Google.
  std::shared_ptr<CredentialSource> credentials;
  std::optional<Secret> hub_token;  // a client's own token; absent: the environment's token
  // Opens paths and the files of the hub's cache. Null: neither is read.
  std::shared_ptr<const ObjectStore> files;
  HttpLimits limits;
  std::shared_ptr<ReadRates> rates;  // limits all stores of a process; null: no limit
};

// The endpoint of S3-compatible stores that the environment names; empty: AWS's own endpoint.
std::string S3Endpoint(const Environment& environment);
// All endpoints that the environment names, for Origins::Parse.
std::vector<std::string> ConfiguredEndpoints(const Environment& environment);

// Opens a writer for s3://. It ignores `files`, `hub_token` and `rates` of `options`. The caller must
// check which objects may be written: the writer uses `origins` only to decide which addresses may be local.
// It follows a redirect only to another region of AWS; any other redirect is an error.
std::shared_ptr<S3Writer> OpenWriter(OpenOptions options);

// Opens a store that finds objects by a URI of any kind, or by a path.
std::unique_ptr<ObjectStore> OpenObjects(OpenOptions options);

}  // namespace tensorcast::objects
