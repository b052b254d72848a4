#include "cli/commands/texts.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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
                    " parts)");
  }
  return text;
}

}  // namespace

void PrintJson(const nlohmann::json& json) {
  std::printf("%s\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

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
