// Models of a hub with Hugging Face's HTTP API, behind core/source's interfaces. Find replaces a revision by
// its commit, so later pushes do not change the found objects. Their URIs are
// "hf://org/name@<commit>/<path>"; their versions are "sha256:<digest>" for large files and "git:<id>" for
// others. Thread-safe.
//
// The hub redirects reads of large files to other hosts, with signed URLs that expire. A reader uses such a
// URL until it expires, then asks the hub for a new one. The token is sent only to the hub.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "core/source/object_reader.h"
#include "objects/http/http_client.h"
#include "objects/http/secret.h"

namespace tensorcast::objects {

struct HubOptions {
  std::string endpoint = "https://huggingface.co";
  Secret token;  // empty: requests are anonymous
  // OK if the hub's redirect `from` -> `to` may be followed.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow = [](const Url&, const Url&) {
    return absl::OkStatus();
  };
  std::function<bool(const Url&)> may_be_local;  // as HttpRequest::may_be_local
  // `cache_folder`: of huggingface_hub. `files` opens files in this folder; null: the cache is not used. A
  // model is read from the cache if the cache has all safetensors files of the commit. If the hub cannot be
  // reached, the commit that the cache has for the revision is used.
  std::string cache_folder;
  std::shared_ptr<const ObjectStore> files;
  bool offline = false;  // Find does not ask the hub
};

std::unique_ptr<ObjectStore> MakeHubStore(std::shared_ptr<HttpClient> http, HubOptions options);

}  // namespace tensorcast::objects
