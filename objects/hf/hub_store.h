// Models of a hub that speaks Hugging Face's HTTP, behind core/source's interfaces. A revision becomes its
// commit when it is found, so what was found stays what it is: objects are "hf://org/name@<commit>/<path>",
// in version "sha256:<digest>" for large files and "git:<id>" for others. Thread-safe.
//
// Large files lie on other hosts, where signed redirects lead that expire. A reader keeps such a redirect for
// as long as it works, and asks for another one when it does not. The token goes to the hub alone.
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
  // Whether files may be read where the hub redirects to.
  std::function<absl::Status(const Url& from, const Url& to)> may_follow = [](const Url&, const Url&) {
    return absl::OkStatus();
  };
  std::function<bool(const Url&)> may_be_local;  // HttpRequest's
  // Where huggingface_hub keeps what it downloaded, and the store of files that opens it. What is there in
  // whole, by its safetensors files, is read there, also where the hub is away. Null: everything is from the
  // hub.
  std::string cache_folder;
  std::shared_ptr<const ObjectStore> files;
  bool offline = false;  // the hub is not asked
};

std::unique_ptr<ObjectStore> MakeHubStore(std::shared_ptr<HttpClient> http, HubOptions options);

}  // namespace tensorcast::objects
