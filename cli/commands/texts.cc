#include "cli/commands/texts.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "cli/output/output.h"
#include "core/replica/replica.h"
#include "rpc/convert/convert.h"

namespace tensorcast::cli {
namespace {

std::string PoolText(const v1::Pool& pool) {
  std::string text = absl::StrCat(LocationText(pool.location()), " ", FormatBytes(pool.used_bytes()), " of ",
                                  FormatBytes(pool.capacity_bytes()));
  if (pool.partial_replicas() > 0) {
    absl::StrAppend(&text, " (", FormatBytes(pool.partial_bytes()), " in ", pool.partial_replicas(),
                    " partial replicas)");
  }
  return text;
}

}  // namespace

absl::Status Show(const CommonFlags& common, const google::protobuf::Message& message,
                  absl::FunctionRef<std::string()> text) {
  // The text is made only where it is shown: for some commands it costs a call.
  if (!common.json) return Show(common, nullptr, text());
  std::fputs(ToJson(message).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Show(const CommonFlags& common, const nlohmann::json& json, std::string_view text) {
  // Names and errors of other processes may be any bytes. JSON has to be UTF-8, so wrong bytes are replaced;
  // on a terminal control characters would act, so they are escaped.
  const auto replace = nlohmann::json::error_handler_t::replace;
  const std::string shown =
      common.json ? json.dump(-1, ' ', false, replace) + "\n" : Printable(text, /*keep_lines=*/true);
  std::fputs(shown.c_str(), stdout);
  return absl::OkStatus();
}

// Not an error: a daemon of a later version may name a kind of location that this program does not know.
std::string LocationText(const v1::Location& location) {
  const absl::StatusOr<Location> known = rpc::FromProto(location);
  return known.ok() ? known->ToString() : "?";
}

std::string PoolsText(const google::protobuf::RepeatedPtrField<v1::Pool>& pools) {
  std::vector<std::string> texts;
  for (const v1::Pool& pool : pools) texts.push_back(PoolText(pool));
  return absl::StrJoin(texts, ", ");
}

std::vector<std::string> ConditionsOf(const v1::Node& node) {
  std::vector<std::string> conditions;
  if (node.draining()) conditions.emplace_back("draining");
  if (node.unreachable()) conditions.emplace_back("unreachable");
  for (const int device : node.unhealthy_devices()) {
    conditions.push_back(absl::StrCat("gpu:", device, " unhealthy"));
  }
  return conditions;
}

}  // namespace tensorcast::cli
