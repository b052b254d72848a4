// The JSON documents of the dashboard, from what daemons and the global store answer: the messages of the
// commands' --json, paged and joined. README.md describes each.
//
// Thread-safe. Every call takes a bounded time; what several views need is asked for once. Errors: NOT_FOUND
// for a view, a node, an artifact or a key that does not exist, INVALID_ARGUMENT for a parameter, else what a
// server answered.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "cli/dashboard/http_request.h"
#include "tensorcast/client.h"

namespace tensorcast::dashboard {

inline constexpr size_t kMaxDocumentBytes = 2 << 20;

class Documents {
 public:
  struct Options {
    // How to connect to the daemon or global store that the dashboard is beside; asked again for each new
    // connection, since none need run when the dashboard starts.
    std::function<absl::StatusOr<client::ClientOptions>()> connect;
    std::string version;  // of this program
  };
  explicit Documents(Options options);
  ~Documents();

  absl::StatusOr<nlohmann::json> Make(const std::string& view, const Query& query);

 private:
  class Maker;
  const std::unique_ptr<Maker> maker_;
};

}  // namespace tensorcast::dashboard
