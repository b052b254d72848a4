#include "cli/dashboard/documents.h"

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/dashboard/document_maker.h"
#include "cli/dashboard/event_hub.h"

namespace tensorcast::dashboard {

using nlohmann::json;

absl::StatusOr<json> Documents::Maker::Make(const std::string& view, const Query& query) {
  using Method = absl::StatusOr<json> (Maker::*)(const Query& query);
  static constexpr std::pair<std::string_view, Method> kViews[] = {
      {"status", &Maker::Status},       {"zones", &Maker::Zones},
      {"nodes", &Maker::Nodes},         {"node", &Maker::Node},
      {"artifacts", &Maker::Artifacts}, {"artifact", &Maker::Artifact},
      {"keys", &Maker::Keys},           {"key", &Maker::Key},
      {"transfers", &Maker::Transfers}, {"transfer", &Maker::Transfer},
      {"tasks", &Maker::Tasks}};
  for (const auto& [name, method] : kViews) {
    if (name == view) return (this->*method)(query);
  }
  return absl::NotFoundError(absl::StrCat("show ", view, ": the dashboard has no such view"));
}

Documents::Documents(Options options) : maker_(std::make_unique<Maker>(std::move(options))) {}
Documents::~Documents() = default;

absl::StatusOr<json> Documents::Make(const std::string& view, const Query& query) {
  TC_ASSIGN_OR_RETURN(json document, maker_->Make(view, query));
  // This bound is the last one: lists are bounded by their views, but messages may be large.
  if (ToText(document).size() > kMaxDocumentBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("show ", view, ": the document has more than ",
                                                     kMaxDocumentBytes, " bytes; give a smaller page_size"));
  }
  return document;
}

}  // namespace tensorcast::dashboard
