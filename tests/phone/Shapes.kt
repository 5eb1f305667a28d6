// Runs a model of several shapes on (rows, 8) numbers: FOLDER ROWS...
import dev.romou.Model
import dev.romou.ModelException
import java.io.File

fun main(arguments: Array<String>) {
    Model(File(arguments[0])).use { model ->
        for (rows in arguments.drop(1).map { it.toLong() }) {
            try {
                model.reshape("x", rows, 8)
                model.set("x", FloatArray(rows.toInt() * 8) { it * 0.25f - rows })
                model.run()
                val output = model.outputs[0]
                println("run $rows ${model.inputs[0].shape} ${output.shape} ${model.floats(output.name).joinToString(" ")}")
            } catch (error: ModelException) {
                println("error ${error.code} ${error.message}")
            }
        }
    }
}
