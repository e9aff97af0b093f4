#pragma once

namespace isobar {

/// From now on SIGINT and SIGTERM only set a flag; long work looks at it. Called once, by main.
void catch_interrupts();

/// True once the process was asked to stop. Cheap enough for inner loops.
bool interrupted();

/// @throws Interrupted once the process was asked to stop.
void throw_if_interrupted();

}  // namespace isobar
