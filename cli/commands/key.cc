#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/commands/texts.h"
#include "cli/output/output.h"
#include "proto/global_store.pb.h"

namespace tensorcast::cli {
namespace {

struct KeyFlags {
  std::string key;
  std::string artifact;
  std::optional<uint64_t> expected_revision;
  std::optional<uint64_t> keep;
  bool confirmed = false;
};

std::string KeyText(const v1::Key& key, bool deleted = false) {
  std::string text = absl::StrCat(key.name(), "  ", key.artifact_id(), "  revision ", key.revision(),
                                  deleted ? "  deleted\n" : "\n");
  if (!key.files_id().empty()) absl::StrAppend(&text, "  files  ", key.files_id(), "\n");
  for (const v1::KeyVersion& version : key.earlier()) {
    absl::StrAppend(&text, "  kept  ", version.artifact_id(), "  revision ", version.revision(), "\n");
  }
  return text;
}

absl::Status BindKey(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(
      const v1::BindKeyResponse bound,
      admin->BindKey(InterruptibleContext(), flags.key, flags.artifact, flags.expected_revision, flags.keep));
  return Show(common, bound, [&] { return KeyText(bound.key()); });
}

absl::Status ResolveKey(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const v1::ResolveKeyResponse resolved,
                      admin->ResolveKey(InterruptibleContext(), flags.key, flags.confirmed));
  // Without --confirmed the last answer that this node knows is a success, while the global store is away.
  if (resolved.unconfirmed()) WarnUnconfirmed(resolved.key().name(), resolved.key().revision());
  return Show(common, resolved, [&] { return KeyText(resolved.key()); });
}

absl::Status ListKeys(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_ASSIGN_OR_RETURN(const v1::ListKeysResponse listed, admin->ListKeys(InterruptibleContext(), flags.key));
  Table table({"key", "artifact", "revision", "versions kept"});
  for (const v1::Key& key : listed.keys()) {
    table.Add({key.name(), key.artifact_id(), absl::StrCat(key.revision()),
               absl::StrCat(key.earlier_size() + 1, " of ", key.keep())});
  }
  return Show(common, listed, [&] { return table.ToString(); });
}

// Not spanned, since it has no end of its own: an interrupt is its success, and each change is printed as it
// comes.
int WatchKeys(const CommonFlags& common, const KeyFlags& flags) {
  const auto admin = ConnectAdmin(common);
  if (!admin.ok()) return EndlessExitCode(admin.status());
  // Called on this thread, for each message of the stream. True: the watch goes on.
  const auto on_key = [&](const v1::WatchKeysResponse& change) {
    Show(common, change, [&] { return KeyText(change.key(), change.deleted()); }).IgnoreError();
    // A reader of a pipe gets each change at once, not when a buffer is full.
    std::fflush(stdout);
    return true;
  };
  return EndlessExitCode((*admin)->WatchKeys(InterruptibleContext(), flags.key, on_key));
}

absl::Status RemoveKey(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto admin, ConnectAdmin(common));
  TC_RETURN_IF_ERROR(admin->DeleteKey(InterruptibleContext(), flags.key, flags.expected_revision));
  return Show(common, nlohmann::json::object(),
              absl::StrCat("removed key ", flags.key,
                           "; its artifact is kept until `tensorcast rm` or `gc` deletes it\n"));
}

void AddName(Flags& flags, KeyFlags& values, const std::string& help) {
  flags.Add("key", values.key, help, {.required = true});
}

// Compare-and-swap: of two writers that both saw revision 3 only one makes revision 4, and the other is
// refused.
void AddExpectedRevision(Flags& flags, KeyFlags& values, const std::string& help) {
  flags.Add("--expect-revision", values.expected_revision, help);
}

void AddBindFlags(Flags& flags, KeyFlags& values) {
  AddName(flags, values, "Name of the key, which may be new or bound to another artifact");
  flags.Add("artifact", values.artifact,
            "An artifact id (tc2:...), or a key that is bound to the artifact now", {.required = true});
  AddExpectedRevision(flags, values, "Bind only if the key has this revision (0: the key does not exist)");
  flags.Add(
      "--keep", values.keep,
      "Number of versions that the key keeps from now on, including this one; older versions are evicted\n"
      "when memory is needed",
      {.min = 1, .max = 1000});
}

void AddResolveFlags(Flags& flags, KeyFlags& values) {
  AddName(flags, values, "Name of the key");
  flags.Add("--confirmed", values.confirmed, kConfirmedHelp);
}

void AddListFlags(Flags& flags, KeyFlags& values) {
  flags.Add("prefix", values.key, "List only keys that begin with this prefix");
}

void AddWatchFlags(Flags& flags, KeyFlags& values) {
  flags.Add("prefix", values.key, "Prefix of the keys to watch", {.required = true});
}

void AddRemoveFlags(Flags& flags, KeyFlags& values) {
  AddName(flags, values, "Name of the key; the artifact is not deleted");
  AddExpectedRevision(flags, values, "Remove the key only if it has this revision");
}

}  // namespace

Command KeyCommand() {
  return {
      .name = "key",
      .help = "Work with keys: names bound to artifacts",
      .commands = {{.name = "bind", .help = "Bind a key to an artifact", .bind = Bind(AddBindFlags, BindKey)},
                   {.name = "resolve",
                    .help = "Show the artifact that a key names",
                    .bind = Bind(AddResolveFlags, ResolveKey)},
                   {.name = "ls", .help = "List keys", .bind = Bind(AddListFlags, ListKeys)},
                   {.name = "watch",
                    .help = "Print the keys with a prefix, then each change of these keys",
                    .bind = Bind(AddWatchFlags, WatchKeys)},
                   {.name = "rm", .help = "Remove a key", .bind = Bind(AddRemoveFlags, RemoveKey)}}};
}

}  // namespace tensorcast::cli
