// All commands of the program, in the order of --help. To add a command, write `Command NameCommand()` in a
// new source, and add its name to the list below.
#pragma once

#include <vector>

#include "cli/commands/command.h"

#define TENSORCAST_COMMANDS(COMMAND) \
  COMMAND(GlobalStore)               \
  COMMAND(Daemon)                    \
  COMMAND(Put)                       \
  COMMAND(Manifest)                  \
  COMMAND(Get)                       \
  COMMAND(Replicate)                 \
  COMMAND(List)                      \
  COMMAND(Remove)                    \
  COMMAND(Gc)                        \
  COMMAND(Status)                    \
  COMMAND(Explain)                   \
  COMMAND(Top)                       \
  COMMAND(Dashboard)                 \
  COMMAND(Doctor)                    \
  COMMAND(Debug)                     \
  COMMAND(Key)                       \
  COMMAND(Replica)                   \
  COMMAND(Replication)               \
  COMMAND(Follower)                  \
  COMMAND(Node)                      \
  COMMAND(Metadata)                  \
  COMMAND(MakeModel)                 \
  COMMAND(Demo)                      \
  COMMAND(OtelSmoke)                 \
  COMMAND(Config)                    \
  COMMAND(Certs)                     \
  COMMAND(Completion)                \
  COMMAND(Bench)                     \
  COMMAND(NcclHelper)                \
  COMMAND(Keeper)

namespace tensorcast::cli {

#define TENSORCAST_DECLARE(name) Command name##Command();
TENSORCAST_COMMANDS(TENSORCAST_DECLARE)
#undef TENSORCAST_DECLARE

inline std::vector<Command> AllCommands() {
#define TENSORCAST_CALL(name) name##Command(),
  return {TENSORCAST_COMMANDS(TENSORCAST_CALL)};
#undef TENSORCAST_CALL
}

}  // namespace tensorcast::cli
