package dev.romou

import android.content.Context
import java.io.File

/**
 * Copy the model in the app's assets to a folder, which `Model` opens and where the device's compiled programs are kept.
 * `version` names the folder: a new version of the app gets a new one, and older ones are removed.
 */
fun unpackedModel(context: Context, version: String, asset: String = "model"): File {
    val all = File(context.noBackupFilesDir, "romou")
    val folder = File(all, version)
    if (File(folder, "model.json").isFile) return folder
    all.deleteRecursively()
    // model.json comes last: it says that the folder is whole.
    fun copy(name: String, to: File) {
        val inside = context.assets.list(name) ?: emptyArray()
        if (inside.isEmpty()) {
            to.parentFile!!.mkdirs()
            context.assets.open(name).use { from -> to.outputStream().use { from.copyTo(it) } }
        }
        inside.sortedBy { it == "model.json" }.forEach { copy("$name/$it", File(to, it)) }
    }
    copy(asset, folder)
    return folder
}
