// Opens what lies outside of this host, whatever its kind: "s3://", "gs://", "https://", "http://" and
// "hf://"; and files, by their paths. One store serves all imports of a process and keeps its connections.
// Thread-safe.
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
  // Read once, here: AWS_*, HF_*, XDG_CACHE_HOME and HOME, as AWS's and Hugging Face's own tools read them.
  // AWS_CA_BUNDLE is for all kinds.
  Environment environment = ProcessEnvironment();
  // What may be read; each redirect is checked, too. Absent: all that a user's own process can reach.
  std::optional<Origins> origins;
  // Of a client that brings its own; null: those of the environment, which for gs:// are HMAC keys.
  std::shared_ptr<CredentialSource> credentials;
  std::optional<Secret> hub_token;  // of a client that brings its own; absent: the environment's
  // Opens what is named by a path, and the files of the hub's cache; null: neither is read.
  std::shared_ptr<const ObjectStore> files;
  HttpLimits limits;
  std::shared_ptr<ReadRates> rates;  // of all stores of a process; null: no limit
};

// The endpoint of S3-compatible stores that the environment names; empty: AWS's.
std::string S3Endpoint(const Environment& environment);
// All endpoints that it names, for Origins::Parse.
std::vector<std::string> ConfiguredEndpoints(const Environment& environment);

// Writes to s3://. Of `options` it has no files and no hub, and it does not ask `origins` which objects may
// be written: that is the caller's to do. A redirect leads to another region of AWS, or is an error.
std::shared_ptr<S3Writer> OpenWriter(OpenOptions options);

// A store that finds what lies at a URI of each kind, or at a path.
std::unique_ptr<ObjectStore> OpenObjects(OpenOptions options);

}  // namespace tensorcast::objects
