#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/commands/command.h"
#include "cli/commands/connect.h"
#include "cli/output/json.h"
#include "cli/output/output.h"
#include "proto/global_store.pb.h"
#include "tensorcast/client.h"

namespace tensorcast::cli {
namespace {

struct KeyFlags {
  std::string key;
  std::string artifact;
  std::optional<uint64_t> expected_revision;
  std::optional<uint64_t> keep;
  bool confirmed = false;
};

v1::Key ToMessage(const client::KeyInfo& key) {
  v1::Key message;
  message.set_name(key.name);
  message.set_artifact_id(key.artifact_id);
  message.set_revision(key.revision);
  message.mutable_updated()->set_seconds(absl::ToUnixSeconds(key.updated));
  message.set_keep(key.keep);
  for (const client::KeyInfo::Version& version : key.earlier) {
    v1::KeyVersion& added = *message.add_earlier();
    added.set_artifact_id(version.artifact_id);
    added.set_revision(version.revision);
    added.mutable_bound()->set_seconds(absl::ToUnixSeconds(version.bound));
  }
  return message;
}

void PrintKey(const CommonFlags& common, const client::KeyInfo& key) {
  if (common.json) {
    v1::WatchKeysResponse message;
    *message.mutable_key() = ToMessage(key);
    message.set_deleted(key.deleted);
    std::fputs(ToJson(message).c_str(), stdout);
  } else {
    PrintF("%s  %s  revision %u%s\n", key.name, key.artifact_id, key.revision,
           key.deleted ? "  deleted" : "");
    for (const client::KeyInfo::Version& version : key.earlier) {
      PrintF("  kept  %s  revision %u\n", version.artifact_id, version.revision);
    }
  }
  std::fflush(stdout);
}

absl::Status Print(const CommonFlags& common, const absl::StatusOr<client::KeyInfo>& key) {
  if (key.ok()) PrintKey(common, *key);
  return key.status();
}

absl::Status Resolve(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_ASSIGN_OR_RETURN(const client::KeyInfo key,
                      client->ResolveKey(InterruptibleContext(), flags.key, flags.confirmed));
  if (key.unconfirmed) WarnUnconfirmed(key.name, key.revision);
  if (!common.json) {
    PrintKey(common, key);
    return absl::OkStatus();
  }
  v1::ResolveKeyResponse message;
  *message.mutable_key() = ToMessage(key);
  message.set_unconfirmed(key.unconfirmed);
  std::fputs(ToJson(message).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status List(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_ASSIGN_OR_RETURN(const auto keys, client->ListKeys(InterruptibleContext(), flags.key));
  if (common.json) {
    v1::ListKeysResponse all;
    for (const client::KeyInfo& key : keys) *all.add_keys() = ToMessage(key);
    std::fputs(ToJson(all).c_str(), stdout);
    return absl::OkStatus();
  }
  Table table({"key", "artifact", "revision", "versions kept"});
  for (const client::KeyInfo& key : keys) {
    table.Add({key.name, key.artifact_id, std::to_string(key.revision),
               absl::StrCat(key.earlier.size() + 1, " of ", key.keep)});
  }
  std::fputs(table.ToString().c_str(), stdout);
  return absl::OkStatus();
}

absl::Status Watch(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  return client->WatchKeys(InterruptibleContext(), flags.key, [&](const client::KeyInfo& key) {
    PrintKey(common, key);
    return true;
  });
}

absl::Status Remove(const CommonFlags& common, const KeyFlags& flags) {
  TC_ASSIGN_OR_RETURN(const auto client, ConnectClient(common));
  TC_RETURN_IF_ERROR(client->DeleteKey(InterruptibleContext(), flags.key, flags.expected_revision));
  if (!common.json) std::printf("removed key %s; its artifact stays until rm or gc\n", flags.key.c_str());
  if (common.json) std::printf("{}\n");
  return absl::OkStatus();
}

void AddName(Flags& flags, KeyFlags& values, const std::string& help) {
  flags.Add("key", values.key, help, {.required = true});
}

void AddExpectedRevision(Flags& flags, KeyFlags& values) {
  flags.Add("--expect-revision", values.expected_revision,
            "Bind only if the key has this revision (0: the key does not exist)");
}

void AddBindFlags(Flags& flags, KeyFlags& values) {
  AddName(flags, values, "The name; it is made, or led to another artifact");
  flags.Add("artifact", values.artifact,
            "An artifact id (tc2:...), or a key that is bound to the artifact now", {.required = true});
  AddExpectedRevision(flags, values);
  flags.Add(
      "--keep", values.keep,
      "Number of versions that the key keeps from now on, including this one; older ones go when room is\n"
      "needed",
      {.min = 1, .max = 1000});
}

void AddResolveFlags(Flags& flags, KeyFlags& values) {
  AddName(flags, values, "The name");
  flags.Add("--confirmed", values.confirmed, kConfirmedHelp);
}

void AddListFlags(Flags& flags, KeyFlags& values) {
  flags.Add("prefix", values.key, "List only keys that begin with this prefix");
}

void AddWatchFlags(Flags& flags, KeyFlags& values) {
  flags.Add("prefix", values.key, "Prefix of the keys to watch", {.required = true});
}

void AddRemoveFlags(Flags& flags, KeyFlags& values) {
  AddName(flags, values, "The name; its artifact stays");
  AddExpectedRevision(flags, values);
}

int RunKeyBind(const CommonFlags& common, const KeyFlags& flags) {
  const auto client = ConnectClient(common);
  if (!client.ok()) return Fail(client.status());
  return ExitCode(Print(common, (*client)->BindKey(InterruptibleContext(), flags.key, flags.artifact,
                                                   flags.expected_revision, flags.keep)));
}

int RunKeyResolve(const CommonFlags& common, const KeyFlags& flags) {
  return ExitCode(Resolve(common, flags));
}

int RunKeyList(const CommonFlags& common, const KeyFlags& flags) { return ExitCode(List(common, flags)); }
int RunKeyWatch(const CommonFlags& common, const KeyFlags& flags) {
  return EndlessExitCode(Watch(common, flags));
}
int RunKeyRemove(const CommonFlags& common, const KeyFlags& flags) { return ExitCode(Remove(common, flags)); }

}  // namespace

Command KeyCommand() {
  return {
      .name = "key",
      .help = "Work with keys: names bound to artifacts",
      .commands = {
          {.name = "bind", .help = "Bind a key to an artifact", .bind = Bind(AddBindFlags, RunKeyBind)},
          {.name = "resolve", .help = "Show what a key names", .bind = Bind(AddResolveFlags, RunKeyResolve)},
          {.name = "ls", .help = "List keys", .bind = Bind(AddListFlags, RunKeyList)},
          {.name = "watch",
           .help = "Print keys that start so, and each change of them",
           .bind = Bind(AddWatchFlags, RunKeyWatch)},
          {.name = "rm", .help = "Remove a key", .bind = Bind(AddRemoveFlags, RunKeyRemove)}}};
}

}  // namespace tensorcast::cli
